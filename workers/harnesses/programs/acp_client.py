"""Asks an agent of the Agent Client Protocol one prompt, and serves it files, terminals and permissions.

It runs in the sandbox with the agent, as a script of the standard library alone. Arguments: a file of
settings, a line of JSON each, and the agent's command. The prompt is read from stdin. Status 0 means that the
agent ended its turn. Messages are JSON-RPC 2.0, a line each: https://agentclientprotocol.com
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

VERSION = 1
"""Of the protocol."""
END_SECONDS = 10.0
"""Time that the agent has to end by itself after its turn."""
PERMITTED = ("allow_always", "allow_once")
"""Kinds of options that grant a permission, the preferred one first."""
METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603


class Terminal:
    """A command, whose output is kept up to `limit` bytes: the newest."""

    def __init__(self, request: dict[str, Any]) -> None:
        command, words = request["command"], request.get("args")
        self.process = subprocess.Popen(
            [command, *words] if words else ["sh", "-c", command],
            cwd=request.get("cwd"),
            env=os.environ | {each["name"]: each["value"] for each in request.get("env") or ()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._limit = request.get("outputByteLimit")
        self._kept = b""
        self._lost = False
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while piece := os.read(self.process.stdout.fileno(), 1 << 16):
            kept = self._kept + piece
            if self._limit is not None and len(kept) > self._limit:
                self._lost, kept = True, kept[len(kept) - self._limit :]
            self._kept = kept

    def output(self) -> dict[str, Any]:
        kept = self._kept
        while self._lost and kept and kept[0] & 0xC0 == 0x80:  # the rest of a character that was cut
            kept = kept[1:]
        found: dict[str, Any] = {"output": kept.decode(errors="replace"), "truncated": self._lost}
        return found if self.process.poll() is None else {**found, "exitStatus": self.exit_status()}

    def exit_status(self) -> dict[str, Any]:
        """Waits for the end."""
        status = self.process.wait()
        self._reading.join(1.0)  # what it left running may hold its output open
        if status < 0:
            return {"exitCode": None, "signal": signal.Signals(-status).name}
        return {"exitCode": status, "signal": None}

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)


class Client:
    """The client's methods of the protocol."""

    def __init__(self) -> None:
        self._terminals: dict[str, Terminal] = {}

    def method(self, name: str) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
        """Returns what serves a request."""
        return {
            "session/request_permission": self._permit,
            "fs/read_text_file": self._read_file,
            "fs/write_text_file": self._write_file,
            "terminal/create": self._create,
            "terminal/output": lambda asked: self._terminals[asked["terminalId"]].output(),
            "terminal/wait_for_exit": lambda asked: self._terminals[asked["terminalId"]].exit_status(),
            "terminal/kill": self._kill,
            "terminal/release": self._release,
        }.get(name)

    def _permit(self, asked: dict[str, Any]) -> dict[str, Any]:
        for kind in PERMITTED:
            for option in asked["options"]:
                if option["kind"] == kind:
                    return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
        return {"outcome": {"outcome": "cancelled"}}

    def _read_file(self, asked: dict[str, Any]) -> dict[str, Any]:
        text = Path(asked["path"]).read_text(encoding="utf-8", errors="replace")
        line, limit = asked.get("line"), asked.get("limit")
        if line is not None or limit is not None:
            first = max((line or 1) - 1, 0)
            lines = text.splitlines(keepends=True)[first:]
            text = "".join(lines if limit is None else lines[:limit])
        return {"content": text}

    def _write_file(self, asked: dict[str, Any]) -> dict[str, Any]:
        path = Path(asked["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(asked["content"], encoding="utf-8")
        return {}

    def _create(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = f"terminal-{len(self._terminals)}"
        self._terminals[name] = Terminal(asked)
        return {"terminalId": name}

    def _kill(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._terminals[asked["terminalId"]].kill()
        return {}

    def _release(self, asked: dict[str, Any]) -> dict[str, Any]:
        # It stays in the table, so that its name is not given again.
        return self._kill(asked)


class Agent:
    """The agent's process, and the requests to it and from it."""

    def __init__(self, command: Sequence[str], client: Client) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin: IO[bytes] = self.process.stdin
        self._stdout: IO[bytes] = self.process.stdout
        self._client = client
        self._writing = threading.Lock()
        self._replies: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._asked = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Returns the result. Ends this process with a sentence if there is none."""
        self._asked += 1
        self._send({"id": self._asked, "method": method, "params": params})
        while True:
            reply = self._replies.get()
            if reply is None:
                sys.exit(f"the agent ended with status {self.process.wait()} during {method}")
            if reply.get("id") != self._asked:
                sys.stderr.write(f"an answer to no request: {json.dumps(reply)[:500]}\n")
            elif "error" in reply:
                sys.exit(f"the agent refused {method}: {json.dumps(reply['error'])}")
            else:
                result: dict[str, Any] = reply.get("result") or {}
                return result

    def end(self) -> None:
        """Closes the connection, which ends an agent; kills one that goes on."""
        with suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _listen(self) -> None:
        for line in self._stdout:
            try:
                message = json.loads(line)
                wanted = message.get("method")
            except (ValueError, AttributeError):
                sys.stderr.write(f"not a message: {line[:500].decode(errors='replace')}\n")
                continue
            if wanted is None:
                self._replies.put(message)
            elif "id" in message:  # a command may take long: others go on meanwhile
                threading.Thread(target=self._answer, args=(message,), daemon=True).start()
        self._replies.put(None)

    def _answer(self, message: dict[str, Any]) -> None:
        name = message["method"]
        serve = self._client.method(name)
        if serve is None:
            error = {"code": METHOD_NOT_FOUND, "message": f"this client has no method {name}"}
            self._send({"id": message["id"], "error": error})
            return
        try:
            answer = {"result": serve(message.get("params") or {})}
        except Exception as problem:
            told = f"{type(problem).__name__}: {problem}"
            answer = {"error": {"code": INTERNAL_ERROR, "message": told}}
        self._send({"id": message["id"], **answer})

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        # An agent that ended is reported by the listener.
        with suppress(BrokenPipeError, ValueError), self._writing:
            self._stdin.write(line)
            self._stdin.flush()


def turn(agent: Agent, settings: dict[str, str], prompt: str) -> str:
    """Returns the reason for which the agent stopped."""
    known = agent.ask(
        "initialize",
        {
            "protocolVersion": VERSION,
            "clientInfo": {"name": "orchard", "version": "1"},
            "clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True},
        },
    )
    if (spoken := known.get("protocolVersion")) != VERSION:
        sys.exit(f"the agent speaks version {spoken} of the protocol, not {VERSION}")
    if method := settings["authentication"]:
        agent.ask("authenticate", {"methodId": method})
    servers = []
    if "mcp" in settings:
        if not known.get("agentCapabilities", {}).get("mcpCapabilities", {}).get("http"):
            sys.exit("the agent takes no MCP server over HTTP, as this task needs")
        servers = [{"type": "http", "name": "world", "url": settings["mcp"], "headers": []}]
    session = agent.ask("session/new", {"cwd": settings["workdir"], "mcpServers": servers}).get("sessionId")
    asked = {"sessionId": session, "prompt": [{"type": "text", "text": prompt}]}
    return str(agent.ask("session/prompt", asked).get("stopReason"))


def main(settings: dict[str, str], command: Sequence[str], prompt: str) -> None:
    agent = Agent(command, Client())
    try:
        reason = turn(agent, settings, prompt)
    finally:
        agent.end()
    if reason != "end_turn":
        sys.exit(f"the agent stopped for {reason}")


if __name__ == "__main__":
    given: dict[str, str] = {}
    for each in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        given |= json.loads(each)
    main(given, sys.argv[2:], sys.stdin.read())
