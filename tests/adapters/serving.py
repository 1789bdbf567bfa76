"""Model servers as processes of their own environments, and the client that asks them."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchard.schemas.campaigns import ModelSpec
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Say hello."}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command to run."}},
            "required": ["command"],
        },
    },
}
BROKEN_CALL = '<tool_call>\n{"name": "ba'
"""What a model has begun to write that no tool call can begin with, under the template below."""
TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Call functions of these: <tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
Each call is a JSON object in <tool_call></tool_call>:
<tool_call>
{"name": "f", "arguments": {}}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.tool_calls %}<|im_start|>assistant
{{ message.content or '' }}{% for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def python(adapter: str) -> Path:
    """Of an adapter's environment."""
    return Path(os.environ["ADAPTERS"], adapter, "bin", "python")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


@contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended at the end."""
    process = subprocess.Popen([*map(str, command)], text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def llama(**parameters: Any) -> Iterator[str]:
    """The base URL of llama.cpp's server, when it serves. `port` of its parameters starts it there."""
    script = Path(__file__).with_name("llama_server.py")
    command = [python("llama.cpp"), script, json.dumps(parameters)]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield f"{process.stdout.readline().strip()}/v1"


async def ask(
    url: str,
    messages: list[dict[str, Any]] = HELLO,
    *,
    tools: Sequence[dict[str, Any]] = (),
    model: str = "small",
    max_tokens: int | None = 8,
    timeout: float = 300.0,
    **settings: Any,
) -> Completion:
    """One answer of an endpoint."""
    spec = ModelSpec(name=model, max_tokens=max_tokens, temperature=0.0)
    endpoint = EndpointSettings(base_url=url, **settings)
    async with ModelClient({"default": endpoint}) as client:
        return await client.complete(spec, messages, list(tools), seed=7, timeout=timeout)
