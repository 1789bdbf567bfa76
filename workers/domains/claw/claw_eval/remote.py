"""Runs in the sandbox of the mock services: starts them, calls them, reads their audits.

It needs only the standard library. Usage: `remote.py start|call|audit < JSON`; it prints one JSON object.
"""

import base64
import io
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

HEALTH_SECONDS = 2.0
READY_SECONDS = 60.0
"""Minimum time for a service to become ready, because the machine may be busy."""
CALL_SECONDS = 30.0
LARGEST = 64 << 20
"""Maximum bytes of one answer, which may contain a film's frames."""
LONGEST_SIDE = 1280
FAILED = 500


def asked(
    url: str, method: str, body: Any, seconds: float, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Sends one request and returns status and body (parsed if it is JSON). Raises OSError without an
    answer."""
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
    headers = {"X-Health-Check": "1"}
    try:
        status, _ = asked(
            service["health_check"], service["health_check_method"], {}, HEALTH_SECONDS, headers
        )
    except OSError:
        return False
    return status < 500


def start(root: str, services: list[dict[str, Any]], variables: dict[str, str]) -> dict[str, Any]:
    """Starts the services, waits until each is ready, and resets them. An error is the service's own
    (`broken`) if it exited other than by a signal, could not be executed, or failed its reset."""
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
        deadline = time.monotonic() + max(service["ready_timeout"], READY_SECONDS)
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


def call(url: str, method: str, body: Any, seconds: float = CALL_SECONDS) -> dict[str, Any]:
    """Carries out one call of a tool. A timeout and an answer that is no JSON are failed calls, as in
    Claw-Eval's runner."""
    started = time.monotonic()
    try:
        status, answer = asked(url, method, body, seconds)
    except TimeoutError as error:
        status, answer = FAILED, {"error": str(error)}
    except OSError as error:
        if not isinstance(getattr(error, "reason", None), TimeoutError):
            return {"error": f"{url} does not answer: {error}"}
        status, answer = FAILED, {"error": str(error)}
    if isinstance(answer, str):
        status, answer = FAILED, {"error": answer}
    if isinstance(answer, dict) and isinstance(answer.get("frames"), list):
        answer["frames"] = [small(each) for each in answer["frames"]]
    return {"status": status, "body": answer, "latency_ms": round((time.monotonic() - started) * 1000, 3)}


def small(frame: Any) -> Any:
    """Shrinks a frame's picture to a JPEG of at most LONGEST_SIDE pixels, if Pillow is installed."""
    try:
        from PIL import Image

        picture = Image.open(io.BytesIO(base64.b64decode(frame["image_b64"])))
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        plain = Image.new("RGB", picture.size, "white")
        plain.paste(picture, mask=picture.convert("RGBA").getchannel("A"))
        made = io.BytesIO()
        plain.save(made, "JPEG", quality=60)
    except (ImportError, KeyError, TypeError, ValueError, OSError):
        return frame
    return {**frame, "image_b64": base64.b64encode(made.getvalue()).decode(), "mime_type": "image/jpeg"}


def audit(urls: dict[str, str]) -> dict[str, Any]:
    found = {}
    for name, url in urls.items():
        try:
            _, said = asked(url, "GET", {}, CALL_SECONDS)
        except OSError as error:
            return {"error": f"the audit of {name} does not answer: {error}"}
        if isinstance(said, dict):
            found[name] = said
    return {"audit": found}


if __name__ == "__main__":
    commands: dict[str, Callable[..., dict[str, Any]]] = {"start": start, "call": call, "audit": audit}
    print(json.dumps(commands[sys.argv[1]](**json.load(sys.stdin))))
