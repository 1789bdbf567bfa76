"""Options of commands in several modules."""

from typing import Annotated

import typer

BaseUrl = Annotated[
    str | None, typer.Option(help="OpenAI-compatible endpoint, http://HOST/v1.", envvar="OPENAI_BASE_URL")
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(help="Name of the environment variable with the key.", show_default="OPENAI_API_KEY"),
]
