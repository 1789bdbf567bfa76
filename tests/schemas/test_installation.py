"""The command that adds an extra names where this installation came from, and no name on an index."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from orchard.schemas.installation import install_command

ROOT = Path(__file__).parents[2]


class Installed(metadata.Distribution):
    def __init__(self, origin: dict[str, Any] | None) -> None:
        self.origin = origin

    def read_text(self, filename: str) -> str | None:
        return json.dumps(self.origin) if self.origin and filename == "direct_url.json" else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file://HERE", "dir_info": {"editable": True}}, "pip install -e 'HERE[train]'"),
        ({"url": "file://HERE/a%20b.whl", "archive_info": {}}, "pip install 'HERE/a b.whl[train]'"),
        (
            {"url": "https://h/o.git", "vcs_info": {"vcs": "git"}},
            "pip install 'orchard-pipeline[train] @ git+https://h/o.git'",
        ),
        ({"url": "https://h/o.whl"}, "pip install 'orchard-pipeline[train] @ https://h/o.whl'"),
        ({"url": "file:///gone/o.whl"}, "pip install '/path/to/orchard_pipeline.whl[train]'"),
        (None, "pip install '/path/to/orchard_pipeline.whl[train]'"),
    ],
)
def test_an_extra_comes_from_where_the_installation_came_from(
    origin: dict[str, Any] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b.whl").touch()
    here = json.loads(json.dumps(origin).replace("HERE", str(tmp_path)))
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(here))
    assert install_command("train").startswith(command.replace("HERE", str(tmp_path)))


def test_no_text_installs_orchard_by_a_name_that_anyone_may_register() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for room in ("schemas", "streams", "storage", "injector", "workers", "pipelines", "orchard", "examples"):
        texts += [path for kind in ("*.py", "*.toml", "*.md", "*.html") for path in (ROOT / room).rglob(kind)]
    named = {
        path
        for path in texts
        if path.name not in ("CHANGELOG.md", "installation.py")
        and any(f"install {how}orchard-" in path.read_text() for how in ("", '"', "'", "--upgrade "))
    }
    assert named <= {ROOT / "injector/sdk/README.md"}, "that one gives an address"
