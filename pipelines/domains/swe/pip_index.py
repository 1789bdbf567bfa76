"""A program: asks the package index for sdists with pip's machinery. `packages.py` runs it.

`pip download` would run the build back-end of every sdist for its metadata, which is somebody else's code on
this machine and seconds each. Here pip only finds the file and fetches it, so every setting of the machine
holds (indexes, find-links, certificates, proxies, credentials), and nothing of the package runs.

Standard input: JSON `{"directory", "sdists": [[name, version], ...], "versions": [name, ...], "options"}`:
`options` are further words for the command line of pip.
Standard output: one JSON line for each, as it comes: `{"name", "version", "file"}`, `{"name", "versions"}`,
or `{"name", "error"}` with the version where there is one. `{"unreachable"}` in the words of pip comes last:
whatever else is asked for would fail in the same way, after as many seconds.
"""

import hashlib
import importlib
import json
import logging
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

SUFFIXES = (".tar.gz", ".zip")
_NETWORK_ERRORS = frozenset(
    {
        *("ConnectionError", "Timeout", "RetryError"),
        *("ConnectionFailedError", "ConnectionTimeoutError", "ProxyConnectionError", "SSLVerificationError"),
    }
)
"""Names of the error classes of requests and of pip itself that say that a host was not reached."""


class _Unreachable(Exception):
    """An index could not be asked, in pip's words."""


class _SkippedPages(logging.Handler):
    """Keeps what pip logs of pages that it could not read: it goes on as if they were empty."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.reasons: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Could not fetch URL") and "404 Client Error" not in text:
            self.reasons.append(text.removesuffix(" - skipping"))


class _Index:
    """pip's package finder and session. These two calls have kept their form since pip 20."""

    def __init__(self, command: Any, words: list[str]) -> None:
        options, _ = command.parse_args(["--quiet", "--no-deps", "--no-binary", ":all:", *words, "-"])
        self._session = command.get_default_session(options)
        self._finder = command._build_package_finder(options, self._session)
        self._skipped = _SkippedPages()
        collector = logging.getLogger("pip._internal.index.collector")
        collector.setLevel(logging.DEBUG)
        collector.propagate = False
        collector.addHandler(self._skipped)

    def sdists(self, name: str) -> list[Any]:
        """Candidates of a project that are source archives, oldest first. Raises _Unreachable where there are
        none and an index could not be asked."""
        self._skipped.reasons.clear()
        found = self._finder.find_all_candidates(name)
        if not found and self._skipped.reasons:
            raise _Unreachable(self._skipped.reasons[0])
        return sorted((c for c in found if c.link.filename.endswith(SUFFIXES)), key=lambda c: c.version)

    def fetch(self, link: Any, target: Path) -> None:
        """Download, compare with the index's hash, and put in place whole. Raises _Unreachable."""
        try:
            response = self._session.get(link.url_without_fragment)
        except Exception as error:  # pip's errors have no base class of their own
            if _NETWORK_ERRORS.isdisjoint(each.__name__ for each in type(error).__mro__):
                raise
            words = getattr(error, "context", None) or error
            raise _Unreachable(f"Could not fetch URL {link.url_without_fragment}: {words}") from error
        response.raise_for_status()
        if link.hash_name and hashlib.new(link.hash_name, response.content).hexdigest() != link.hash:
            raise ValueError(f"{link.filename} does not match the {link.hash_name} of the index")
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.write_bytes(response.content)
        partial.replace(target)


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _fetch_project(index: _Index, name: str, versions: list[str], directory: Path) -> None:
    try:
        candidates = index.sdists(name)
    except _Unreachable:
        raise
    except Exception as error:  # pip's errors have no base class of their own
        for version in versions:
            _say(name=name, version=version, error=f"{type(error).__name__}: {error}")
        return
    for version in versions:
        matching = [c for c in candidates if str(c.version) == version]
        if not matching:
            _say(name=name, version=version, error="the index has no source distribution of this version")
            continue
        link = matching[0].link
        suffix = next(suffix for suffix in SUFFIXES if link.filename.endswith(suffix))
        target = directory / f"{name}-{version}{suffix}"
        try:
            index.fetch(link, target)
        except _Unreachable:
            raise
        except Exception as error:
            _say(name=name, version=version, error=f"{type(error).__name__}: {error}")
        else:
            _say(name=name, version=version, file=str(target))


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    directory = Path(request["directory"])
    command = importlib.import_module("pip._internal.commands").create_command("download")
    with command.main_context():
        try:
            _answer(_Index(command, request["options"]), request, directory)
        except _Unreachable as error:
            _say(unreachable=str(error))


def _answer(index: _Index, request: dict[str, Any], directory: Path) -> None:
    wanted = sorted(tuple(each) for each in request["sdists"])
    for name, group in groupby(wanted, key=lambda each: each[0]):
        _fetch_project(index, name, [version for _, version in group], directory)
    for name in request["versions"]:
        try:
            found = [c for c in index.sdists(name) if not c.version.is_prerelease and not c.link.is_yanked]
        except _Unreachable:
            raise
        except Exception as error:
            _say(name=name, error=f"{type(error).__name__}: {error}")
        else:
            _say(name=name, versions=list(dict.fromkeys(str(c.version) for c in found)))


if __name__ == "__main__":
    main()
