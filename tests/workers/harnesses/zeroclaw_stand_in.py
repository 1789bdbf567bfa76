"""What stands in for the binary of ZeroClaw 0.8: it is started, set up and asks its model as that one does.

The settings must be complete, and all of them known: the real program drops what it cannot read, and says no
to a profile that is not there.
"""

SCRIPT = """\
#!/usr/bin/python3
import json, pathlib, subprocess, sys, tomllib, urllib.request

option, home, *words, text = sys.argv[1:]
if option != "--config-dir" or words != ["agent", "-a", "main", "-m"]:
    sys.exit("usage: zeroclaw --config-dir DIR agent -a AGENT -m TEXT")
config = tomllib.loads(pathlib.Path(home, "config.toml").read_text())
if config.pop("schema_version") != 3:
    sys.exit("the settings are of another schema")
agent = config.pop("agents").pop("main")
family, alias = agent["model_provider"].split(".")
provider = config.pop("providers")["models"][family].pop(alias)
risk = config.pop("risk_profiles").pop(agent["risk_profile"])
runtime = config.pop("runtime_profiles").pop(agent["runtime_profile"])
if config:
    sys.exit(f"unknown settings: {sorted(config)}")
if risk["level"] != "full" or risk["workspace_only"] or risk["auto_approve"] != ["*"]:
    sys.exit("nobody is here to approve a command")
if provider["wire_api"] != "chat_completions" or agent["memory"]["backend"] != "none":
    sys.exit("not built for that")

SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": SHELL}}]


def request(stream):
    body = {"model": provider["model"], "messages": messages, "stream": stream}
    if provider["native_tools"]:
        body["tools"] = TOOLS
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + provider["api_key"]}
    url = provider["uri"] + "/chat/completions"
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(asked, timeout=provider["timeout_secs"])


def streamed():
    text, calls = "", {}
    for line in request(True):
        if line.strip() == b"data: [DONE]":
            message = {"role": "assistant", "content": text}
            return message | {"tool_calls": list(calls.values())} if calls else message
        if not line.startswith(b"data: "):
            continue
        for choice in json.loads(line[6:])["choices"]:
            text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls", []):
                call = calls.setdefault(part["index"], {"type": "function", "function": {"arguments": ""}})
                call["id"] = part.get("id") or call["id"]
                call["function"]["name"] = part["function"].get("name") or call["function"]["name"]
                call["function"]["arguments"] += part["function"].get("arguments") or ""
    raise OSError("the stream broke")


def answer():
    try:
        return streamed()
    except (OSError, ValueError) as error:
        print(f"{error}: asking again, without a stream", file=sys.stderr)
        return json.load(request(False))["choices"][0]["message"]


messages = [{"role": "system", "content": "You are ZeroClaw."}, {"role": "user", "content": text}]
for _ in range(runtime["max_tool_iterations"]):
    said = answer()
    messages.append(said)
    if not said.get("tool_calls"):
        print(said["content"])
        sys.exit()
    for call in said["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        options = {"cwd": agent["workspace"]["path"], "timeout": runtime["shell_timeout_secs"]}
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, **options)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout + ran.stderr})
sys.exit("too many calls of tools")
"""
