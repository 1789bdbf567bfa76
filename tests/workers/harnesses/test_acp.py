"""The client of ACP agents, with an agent that goes wrong: one sentence says what happened.

`make test-adapters ARGS=acp` has what goes right, with the public package as judge.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchard.workers.harnesses.programs import acp_client

AGENT = """\
import json, sys

answers = json.loads(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    answer = answers.get(asked["method"])
    if answer is None:
        sys.exit(7)
    for said in answers.get("noise", ()):
        print(said)
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""
RIGHT = {
    "initialize": {"result": {"protocolVersion": 1}},
    "session/new": {"result": {"sessionId": "one"}},
    "session/prompt": {"result": {"stopReason": "end_turn"}},
}


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({}, 0, ""),
        ({"noise": ["Welcome!", "[1]"]}, 0, "not a message: Welcome!"),
        ({"noise": ['{"id": 90, "result": {}}']}, 0, "an answer to no request"),
        ({"session/prompt": None}, 1, "the agent ended with status 7 during session/prompt"),
        (
            {"session/new": {"error": {"code": -32000, "message": "log in"}}},
            1,
            "refused session/new: .*log in",
        ),
        ({"session/prompt": {"result": {"stopReason": "refusal"}}}, 1, "the agent stopped for refusal"),
        ({"initialize": {"result": {"protocolVersion": 2}}}, 1, "version 2 of the protocol, not 1"),
        ({"mcp": "http://127.0.0.1:1/"}, 1, "takes no MCP server over HTTP"),
    ],
)
def test_what_an_agent_does_wrong_is_said(
    tmp_path: Path, changes: dict[str, object], status: int, words: str
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    given = {"workdir": "/", "authentication": ""} | ({"mcp": changes["mcp"]} if "mcp" in changes else {})
    (tmp_path / "settings").write_text(json.dumps(given))
    agent = [sys.executable, str(tmp_path / "agent.py"), json.dumps(RIGHT | changes)]
    done = subprocess.run(
        [sys.executable, acp_client.__file__, tmp_path / "settings", *agent],
        input="do it",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert re.search(words, done.stderr), done.stderr
