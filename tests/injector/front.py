"""A front as a process, in front of services that run."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

DEADLINE = 60.0


class FrontProcess:
    """At `url` until it is stopped; may be killed and started again at the same address."""

    def __init__(self, place: Path, upstreams: Mapping[str, str], key: str | None = None) -> None:
        place.mkdir(exist_ok=True)
        self._place = place
        self._key = {} if key is None else {"SANDBOX_API_KEY": key}
        lines = [f'[upstreams.{name}]\nurl = "{url}"\n' for name, url in upstreams.items()]
        (place / "front.toml").write_text("".join(lines))
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        told = self._place / "port"
        told.unlink(missing_ok=True)
        line = [
            sys.executable,
            "-m",
            "orchard.injector.front",
            "--upstreams",
            str(self._place / "front.toml"),
        ]
        line += ["--port", str(self._port), "--port-file", str(told)]
        self._process = subprocess.Popen(line, env={**os.environ, **self._key})
        deadline = time.monotonic() + DEADLINE
        while not told.exists():
            assert self._process.poll() is None, "the front ended"
            assert time.monotonic() < deadline, "the front does not serve"
            time.sleep(0.02)
        self._port = int(told.read_text())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it in order."""
        self._process.terminate()
        assert self._process.wait(DEADLINE) == 0
