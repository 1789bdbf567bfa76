"""The smallest program that is a harness. It needs only the standard library, so no network."""

RUN = '''\
#!/usr/bin/env python3
"""Asks a model, executes the calls of its answer, and repeats until it calls nothing.

Its tools are a shell and those of an MCP server, where it has one. Settings: a line of JSON each in argv[1].
"""

import json
import subprocess
import sys
import urllib.request

BASH = {
    "name": "bash",
    "description": "Run a shell command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def post(url, body):
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def rpc(method, **params):
    return post(settings["mcp"], {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})["result"]


def tools():
    if "mcp" not in settings:
        return [BASH]
    client = {"name": "mcp-loop", "version": "1"}
    rpc("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
    listed = rpc("tools/list")["tools"]
    return [BASH] + [
        {"name": each["name"], "description": each["description"], "parameters": each["inputSchema"]}
        for each in listed
    ]


def called(name, arguments):
    try:
        given = json.loads(arguments or "{}")
    except ValueError as error:
        return f"the arguments are not JSON: {error}"
    if name != "bash":
        return rpc("tools/call", name=name, arguments=given)["content"][0]["text"]
    command = given.get("command", "") if isinstance(given, dict) else ""
    ran = subprocess.run(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return ran.stdout.decode(errors="replace")


settings = {}
for line in open(sys.argv[1]):
    settings.update(json.loads(line))
functions = [{"type": "function", "function": each} for each in tools()]
messages = [{"role": "user", "content": sys.stdin.read()}]
while True:
    asked = {"model": settings["model"], "messages": messages, "tools": functions}
    said = post(settings["url"], asked)["choices"][0]["message"]
    messages.append(said)
    if not said.get("tool_calls"):
        break
    for call in said["tool_calls"]:
        function = call["function"]
        text = called(function["name"], function["arguments"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
'''
