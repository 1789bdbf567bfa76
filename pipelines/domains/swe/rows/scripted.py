"""Test commands of datasets that bring their own script to run the tests, and a parser in Python.

Both run in the sandbox, after the submission: their output is believed (docs/threat-model.md,
other-test-commands). The parser needs Python in the image.
"""

import shlex
from collections.abc import Sequence

from orchard.workers.domains.swe.logs.scripted import MARK

_PYTHON = '"$(command -v python3 || command -v python)"'


def by_scripts(run: str, parser: str, files: Sequence[str]) -> str:
    """Shell lines that run the script `run` with the test files, separated by commas, and `parser` with the
    paths of standard output, standard error, and the JSON file to be written."""
    return "\n".join(
        [
            "scripts=$(mktemp -d)",
            f'printf %s {shlex.quote(run)} > "$scripts/run.sh"',
            f'printf %s {shlex.quote(parser)} > "$scripts/parser.py"',
            f'bash "$scripts/run.sh" {shlex.quote(",".join(files))} > "$scripts/out" 2> "$scripts/err"',
            'cat "$scripts/out" "$scripts/err"',
            f'{_PYTHON} "$scripts/parser.py" "$scripts/out" "$scripts/err" "$scripts/statuses.json" || exit',
            f"echo; echo '{MARK}'; cat \"$scripts/statuses.json\"",
        ]
    )


def by_function(run: str, function: str) -> str:
    """Shell lines that run `run`, and then the function `parser` of Python's text `function` on the output,
    which returns a status for each test."""
    read = (
        "import json, sys\n"
        "names = {}\n"
        "exec(open(sys.argv[1]).read(), names)\n"
        "print(json.dumps(names['parser'](open(sys.argv[2], errors='replace').read())))"
    )
    return "\n".join(
        [
            "scripts=$(mktemp -d)",
            f'printf %s {shlex.quote(function)} > "$scripts/parser.py"',
            f'( {run}\n) > "$scripts/out" 2>&1',
            'cat "$scripts/out"',
            f'statuses=$({_PYTHON} -c {shlex.quote(read)} "$scripts/parser.py" "$scripts/out") || exit',
            f"echo; echo '{MARK}'; printf '%s\\n' \"$statuses\"",
        ]
    )
