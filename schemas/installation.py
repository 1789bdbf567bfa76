"""The command that adds an extra to this installation.

It takes the source that the installation came from: an index where anyone may register the name is not asked.
"""

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "orchard-pipeline"


def install_command(extra: str) -> str:
    """Returns the `pip install` of an extra, from the clone, file or address in `direct_url.json`."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        text = None
    origin = json.loads(text or "{}")
    url = urlsplit(origin.get("url", ""))
    path = Path(unquote(url.path))
    if url.scheme == "file" and path.exists():
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{path}[{extra}]'"
    if url.scheme not in ("", "file"):
        kind = origin.get("vcs_info", {}).get("vcs")
        return f"pip install '{DISTRIBUTION}[{extra}] @ {kind + '+' if kind else ''}{url.geturl()}'"
    return f"pip install '/path/to/orchard_pipeline.whl[{extra}]' (the release file that was installed)"
