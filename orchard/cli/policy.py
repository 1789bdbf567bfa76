"""`serve-policy`: an OpenAI-compatible server for models trained here."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchard.pipelines.policy.serving import ServingSettings, serve
from orchard.terminal.logs import start_logging

COMMANDS = {
    "serve-policy": "Serve a model: /v1/chat/completions, /v1/completions with token ids, "
    "/admin/reload, /metrics."
}


def register(app: typer.Typer) -> None:
    @app.command(name="serve-policy")
    def serve_policy(
        model: Annotated[
            Path, typer.Argument(help="Directory of a model and its tokenizer, as `orchard sft` writes it.")
        ],
        name: Annotated[str, typer.Option(help="Model name that requests give.")] = "policy",
        version: Annotated[int, typer.Option(help="Policy version of these weights.", min=0)] = 0,
        host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="Port; 0 chooses one.")] = 8800,
        port_file: Annotated[
            Path | None, typer.Option(help="File that gets the port once the server listens.")
        ] = None,
        api_key_env: Annotated[
            str | None, typer.Option(help="Environment variable with the key that clients must send.")
        ] = None,
        slots: Annotated[int, typer.Option(help="Maximum concurrent requests.", min=1)] = 32,
        context: Annotated[int, typer.Option(help="Tokens of prompt and answer together.", min=2)] = 4096,
        waiting: Annotated[int, typer.Option(help="Requests that may wait; more get a 503.", min=0)] = 256,
        prefix_cache: Annotated[
            bool,
            typer.Option("--prefix-cache", help="Reuse the computation of prefixes that requests share."),
        ] = False,
        dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
        threads: Annotated[int, typer.Option(help="CPU threads; 0: torch decides.", min=0)] = 0,
        allowed_host: Annotated[
            list[str] | None,
            typer.Option(help="Further host name under which it is reached, for example behind a proxy."),
        ] = None,
        eager: Annotated[
            bool, typer.Option("--eager", help="On a GPU, start each kernel by itself, without CUDA graphs.")
        ] = False,
        blind: Annotated[
            bool, typer.Option("--blind", help="Treat every picture as black, for a baseline.")
        ] = False,
    ) -> None:
        """Serve a model: /v1/chat/completions, /v1/completions with token ids, /admin/reload, /metrics.

        Workers use it like any other endpoint; `return_token_ids` puts the sampled ids into the log:

            [endpoints.default]
            base_url = "http://127.0.0.1:8800/v1"
            extra_body = { return_token_ids = true, logprobs = true }
        """
        start_logging()
        settings = ServingSettings(
            model=model,
            name=name,
            version=version,
            host=host,
            port=port,
            port_file=port_file,
            api_key_env=api_key_env,
            slots=slots,
            context=context,
            waiting=waiting,
            prefix_cache=prefix_cache,
            dtype=dtype,
            threads=threads,
            allowed_hosts=tuple(allowed_host or ()),
            eager=eager,
            blind=blind,
        )
        sys.exit(serve(settings))
