"""A harness that is a program of a few lines: it asks for commands in chat completions, and runs them."""

from pathlib import Path
from typing import Any

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.workers.harnesses.programs.building import install
from orchard.workers.harnesses.programs.layers import Layer, packed
from orchard.workers.harnesses.programs.record import AcpAgent, Program, SuppliedFiles
from orchard.workers.harnesses.programs.runner import ProgramHarness

PROGRAM = Program(
    name="tiny",
    wire="chat",
    source=SuppliedFiles(),
    command=("$layer/bin/tiny", "$home/settings.json"),
    stdin="$prompt",
    files={"$home/settings.json": '{"url": "$url/v1/chat/completions", "model": "$model"}'},
)

HARNESS = ProgramHarness(PROGRAM)
"""For processes that find it as a plug-in."""

SCRIPT = """\
#!/usr/bin/python3
import json, subprocess, sys, urllib.request

settings = json.load(open(sys.argv[1]))
messages = [{"role": "user", "content": sys.stdin.read()}]
tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
while True:
    body = {"model": settings["model"], "messages": messages, "tools": tools}
    request = urllib.request.Request(settings["url"], json.dumps(body).encode())
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(said)
    for call in said["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        ran = subprocess.run(command, shell=True, capture_output=True, text=True)
        if "COMPLETE" in command:
            sys.exit(0)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout + ran.stderr})
"""


def tiny_archive(place: Path) -> tuple[Layer, Path]:
    """Its layer, and the image of it, by what `orchard harness install --archive` does."""
    files = place / "files"
    (files / "bin").mkdir(parents=True)
    (files / "bin/tiny").write_text(SCRIPT)
    (files / "bin/tiny").chmod(0o755)
    return archived(PROGRAM, place, version="1.0", supplied=files)


def archived(program: Program, place: Path, **supplied: Any) -> tuple[Layer, Path]:
    """A program's layer, and the image of it."""
    archives: list[Path] = []
    layer = install(
        program,
        place / "harnesses",
        lambda image, _: archives.append(packed(image, place / "image.tar")),
        lambda _: None,
        **supplied,
    )
    return layer, archives[0]


ACP_AGENT = """\
import json, sys, urllib.request

settings = json.load(open(sys.argv[1]))
asked = 0


def said(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def served(method, **params):
    global asked
    asked += 1
    said(id=asked, method=method, params={"sessionId": "one", **params})
    return json.loads(sys.stdin.readline())["result"]


def turn(prompt):
    messages = [{"role": "user", "content": prompt}]
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    while True:
        body = {"model": settings["model"], "messages": messages, "tools": tools}
        request = urllib.request.Request(settings["url"], json.dumps(body).encode())
        answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
        messages.append(answer)
        for call in answer["tool_calls"]:
            command = json.loads(call["function"]["arguments"])["command"]
            options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
            permission = served("session/request_permission", toolCall={"toolCallId": "1"}, options=options)
            assert permission["outcome"]["optionId"] == "yes"
            terminal = served("terminal/create", command=command)["terminalId"]
            served("terminal/wait_for_exit", terminalId=terminal)
            output = served("terminal/output", terminalId=terminal)["output"]
            if "COMPLETE" in command:
                return
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


for line in sys.stdin:
    request = json.loads(line)
    result = {"sessionId": "one", "protocolVersion": 1, "stopReason": "end_turn"}
    if request["method"] == "session/prompt":
        turn(request["params"]["prompt"][0]["text"])
    said(id=request["id"], result=result)
"""

ACP_PROGRAM = Program(
    name="tiny-acp",
    wire="chat",
    source=SuppliedFiles(),
    command=("$layer/bin/python3", "$home/agent.py", "$home/settings.json"),
    files={**PROGRAM.files, "$home/agent.py": ACP_AGENT},
    acp=AcpAgent(),
)
"""The same as an agent of the Agent Client Protocol. Its layer has the machine's Python, by a link."""


async def install_tiny(client: AsyncSandboxClient, place: Path) -> Layer:
    """Install it at a service, and the agent."""
    (place / "acp/bin").mkdir(parents=True)
    (place / "acp/bin/python3").symlink_to("/usr/bin/python3")
    without = msgspec.structs.replace(ACP_PROGRAM, acp=None)  # or it would bring a Python
    layer, archive = archived(without, place, supplied=place / "acp")
    await client.import_image(archive, layer.image)
    layer, archive = tiny_archive(place)
    await client.import_image(archive, layer.image)
    return layer
