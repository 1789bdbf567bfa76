"""The version before this one, from the history: its processes run beside ours (decision 0073).

After a release: set PREVIOUS to it, `python -m tests.upgrade.previous`, and run `make test-all`.
"""

import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PREVIOUS = "603b5c20bc5a9c564c6710e5deed38bdf84541bf"
"""A release's tag once there is one."""
RECORD = Path(__file__).with_name("previous.json")
"""`forms` of it, for tests that have no history."""
_ROOT = Path(__file__).parents[2]
_PACKAGE = ("orchard", "schemas", "streams", "storage", "injector", "workers", "pipelines")


@contextmanager
def checkout() -> Iterator[dict[str, str]]:
    """Its package, where everybody may read it: the variables with which a Python imports that one."""
    with tempfile.TemporaryDirectory(prefix="orchard-previous-") as place:
        Path(place).chmod(0o755)
        archive = Path(place) / "previous.tar"
        run = subprocess.run(
            ["git", "archive", "--output", str(archive), PREVIOUS, *_PACKAGE],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, (
            f"the previous version is not in this clone's history ({run.stderr.strip()}): "
            "fetch it with `git fetch --unshallow`"
        )
        with tarfile.open(archive) as tar:
            tar.extractall(Path(place) / "source", filter="tar")
        yield {"PYTHONPATH": f"{place}/source", "PYTHONSAFEPATH": "1"}


def forms(schema: Any, service: Any) -> dict[str, Any]:
    """What the documents schema.json and openapi.json say of messages and of the sandbox service, without the
    prose: definitions of each, and of each route the parameters, whether they must be there, and answers."""
    return {
        "messages": plain(schema["$defs"]),
        "sandboxes": plain(service["components"]["schemas"]),
        "routes": {
            f"{method} {path}": {
                "parameters": {
                    each["name"]: each.get("required", False) for each in route.get("parameters", ())
                },
                "answers": sorted(route["responses"]),
            }
            for path, methods in service["paths"].items()
            for method, route in methods.items()
        },
    }


def plain(value: Any) -> Any:
    """A JSON schema without titles and descriptions; `properties` may have such names."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    prose = {"title", "description", "summary", "examples", "example"}
    return {
        name: {key: plain(each) for key, each in inner.items()} if name == "properties" else plain(inner)
        for name, inner in value.items()
        if name not in prose
    }


def _document(name: str) -> Any:
    shown = ["git", "show", f"{PREVIOUS}:docs/schemas/{name}.json"]
    return json.loads(subprocess.run(shown, cwd=_ROOT, capture_output=True, check=True).stdout)


if __name__ == "__main__":
    record = forms(_document("schema"), _document("openapi"))
    RECORD.write_text(json.dumps(record, separators=(",", ":"), sort_keys=True) + "\n")
