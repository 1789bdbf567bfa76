"""The version of the code that makes rows: the package's, and a digest of the sources that decide what a
row is."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from orchard.pipelines.domain import domains as pipeline_domains
from orchard.workers.domain import domains as worker_domains

ROOT = Path(__file__).parents[2]
_CONVERSATIONS = (
    "pipelines/datasets/*.py",
    "pipelines/trajectories/reading.py",
    "pipelines/trajectories/forests.py",
    "pipelines/values/curves.py",
    "pipelines/vision/places.py",
    "pipelines/vision/reading.py",
    "schemas/*.py",
    "storage/reader.py",
    "storage/views.py",
    "workers/gateway/forest.py",
    "workers/gateway/wire_types.py",
    "workers/episode/arguments.py",
    "workers/episode/large_messages.py",
    "workers/episode/prompts.py",
)
_TOOLS = (
    "workers/harnesses/__init__.py",
    "workers/harnesses/*_prompts.py",
)
_HELD_OUT = (
    "pipelines/tasks/contamination.py",
    "pipelines/tasks/held_out.py",
    "pipelines/tasks/overlap.py",
    "workers/episode/diffs.py",
)


def sources() -> Iterator[Path]:
    """The files of the core that decide what a row is."""
    for pattern in (*_CONVERSATIONS, *_TOOLS, *_HELD_OUT):
        yield from sorted(ROOT.glob(pattern))


@cache
def code_version() -> str:
    """`<version>+<12 hexadecimal digits>`; equal on machines with equal sources and domains."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    codes = [domain.code() for domain in worker_domains().values()]
    codes += [domain.code() for domain in pipeline_domains().values()]
    for code in codes:
        digest.update("\0".join([*code, ""]).encode())
    try:
        release = version("orchard-pipeline")
    except PackageNotFoundError:
        release = "0"
    return f"{release}+{digest.hexdigest()[:12]}"
