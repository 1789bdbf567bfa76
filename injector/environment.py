"""The shell probe of `check_env` and the parsing of its output."""

from typing import Any

MARK = "<environment>"
"""Precedes the probe's output, to separate it from what a profile prints."""

_FIELDS = {
    "path": "$PATH",
    "history": "${HISTCONTROL:-}",
    "has_bashrc": "$([ -f ~/.bashrc ] && echo yes)",
    "conda_exe": "${CONDA_EXE:-$(command -v conda 2>/dev/null)}",
    "conda_env": "${CONDA_DEFAULT_ENV:-}",
    "conda_prefix": "${CONDA_PREFIX:-}",
    "conda_version": "$(${CONDA_EXE:-conda} --version 2>/dev/null)",
    "python": "$(command -v python 2>/dev/null)",
    "python3": "$(command -v python3 2>/dev/null)",
    "python_version": "$(python --version 2>/dev/null || python3 --version 2>/dev/null)",
    "bashrc_content": "$(cat ~/.bashrc 2>/dev/null)",
}

PROBE = f"printf '%s' '{MARK}'; printf '%s\\0' " + " ".join(f'"{value}"' for value in _FIELDS.values())
"""Shell line to run once in a plain and once in a login shell."""


def report(plain: str, login: str) -> dict[str, Any]:
    """Report on the environment, from the output of PROBE in either shell.

    The profile counts as loaded when a `~/.bashrc` exists and a login shell differs from a plain one. Missing
    paths, names and versions are "none"; conda's environment and prefix are None without one.
    """
    before, after = _parsed(plain), _parsed(login)
    has_bashrc = after["has_bashrc"] == "yes"
    changed = any(before[name] != after[name] for name in ("path", "history"))
    conda_works = bool(after["conda_version"])
    return {
        "bashrc_loaded": has_bashrc and changed,
        "has_bashrc": has_bashrc,
        "conda_available": conda_works,
        "conda_broken": bool(after["conda_exe"]) and not conda_works,
        "conda_exe": after["conda_exe"] or "none",
        "conda_env": after["conda_env"] or None,
        "conda_prefix": after["conda_prefix"] or None,
        "path": after["path"],
        "bare_path": before["path"],
        "python": after["python"] or "none",
        "python3": after["python3"] or "none",
        "python_version": after["python_version"] or "none",
        "bashrc_content": after["bashrc_content"] or "none",
    }


def summary(sandbox_id: str, found: dict[str, Any]) -> str:
    shown = {name: value for name, value in found.items() if name != "bashrc_content"}
    return "\n".join([f"sandbox {sandbox_id}", *(f"  {name}: {value}" for name, value in shown.items())])


def _parsed(printed: str) -> dict[str, str]:
    values = printed.rpartition(MARK)[2].split("\0")[:-1]
    return dict(zip(_FIELDS, values, strict=True))
