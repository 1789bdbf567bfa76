"""Runs beside the mock services in their sandbox: starts them, calls them, reads their audits.

It needs the standard library alone.

    remote.py start|call|audit < JSON

Prints one JSON object.
"""

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

HEALTH_SECONDS = 2.0
CALL_SECONDS = 30.0
LARGEST = 4 << 20
"""Bytes of one answer."""


def asked(
    url: str, method: str, body: Any, seconds: float, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and body (JSON where it is) of one request; raises OSError where nobody answers."""
    data = None
    if method == "GET":
        query = urllib.parse.urlencode(body or {})
        url = f"{url}?{query}" if query else url
    else:
        data = json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data=data, method=method, headers=headers or {})
    request.add_header("Content-Type", "application/json")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=seconds) as reply:
            status, raw = reply.status, reply.read(LARGEST)
    except urllib.error.HTTPError as error:
        status, raw = error.code, error.read(LARGEST)
    try:
        return status, json.loads(raw)
    except ValueError:
        return status, raw.decode(errors="replace")


def healthy(service: dict[str, Any]) -> bool:
    """Whether the service answers its health check."""
    headers = {"X-Health-Check": "1"}
    try:
        status, _ = asked(
            service["health_check"], service["health_check_method"], {}, HEALTH_SECONDS, headers
        )
    except OSError:
        return False
    return status < 500


def start(root: str, services: list[dict[str, Any]], variables: dict[str, str]) -> dict[str, Any]:
    """Start the services, wait until each is ready, and reset them. An error is the service's own (`broken`)
    where it ended by itself, other than by a signal, could not be executed, or refuses its reset."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    for service in services:
        line = shlex.split(service["command"])
        if line[:1] in (["python"], ["python3"]):
            line[0] = sys.executable
        port = str(service["port"])
        named = "".join(c if c.isalnum() else "_" for c in service["name"]).upper() + "_PORT"
        log = f"/tmp/{service['name']}.log".replace("/", "_").replace("_tmp_", "/tmp/", 1)
        with open(log, "wb") as output:
            try:
                process = subprocess.Popen(
                    line,
                    cwd=root,
                    env={**kept, "PORT": port, named: port, **variables, **service["env"]},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                return {"error": f"the service {service['name']} cannot be executed: {error}", "broken": True}
        deadline = time.monotonic() + max(service["ready_timeout"], 1.0)
        while not healthy(service):
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                with open(log, "rb") as output:
                    said = output.read()[-500:].decode(errors="replace")
                how = f"ended with {process.returncode}" if ended else "was not ready in time"
                broken = ended and process.returncode >= 0
                return {"error": f"the service {service['name']} {how}: {said}", "broken": broken}
            time.sleep(0.05)
    for service in services:
        if service["reset_endpoint"]:
            status, _ = asked(service["reset_endpoint"], "POST", {}, CALL_SECONDS)
            if status >= 400:
                said = f"the reset of the service {service['name']} answered {status}"
                return {"error": said, "broken": True}
    return {}


def call(url: str, method: str, body: Any) -> dict[str, Any]:
    """One call of a tool."""
    started = time.monotonic()
    try:
        status, answer = asked(url, method, body, CALL_SECONDS)
    except OSError as error:
        return {"error": f"{url} does not answer: {error}"}
    return {"status": status, "body": answer, "latency_ms": round((time.monotonic() - started) * 1000, 3)}


def audit(urls: dict[str, str]) -> dict[str, Any]:
    """What each service's audit says."""
    found = {}
    for name, url in urls.items():
        try:
            status, found[name] = asked(url, "GET", {}, CALL_SECONDS)
        except OSError as error:
            return {"error": f"the audit of {name} does not answer: {error}"}
        if status >= 400:
            del found[name]
    return {"audit": found}


if __name__ == "__main__":
    commands: dict[str, Callable[..., dict[str, Any]]] = {"start": start, "call": call, "audit": audit}
    print(json.dumps(commands[sys.argv[1]](**json.load(sys.stdin))))
