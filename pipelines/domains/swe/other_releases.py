"""Finds newer releases of a task's own package, installed beside it or in a cache."""

import re
from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from orchard.pipelines.tasks.overlap import repo_name

LIST = r"""
top=$(git -c safe.directory='*' rev-parse --show-toplevel 2> /dev/null) || top=$PWD
find "$top" -maxdepth 3 -name PKG-INFO -exec sed -n \
    -e '/^$/q' -e 's/^Name: */project\t/p' -e 's/^Version: */own\t/p' {} \; 2> /dev/null
for table in project tool.poetry; do
    sed -n "/^\[$table\]/,/^\[[^\"']*\]\$/p" "$top/pyproject.toml" 2> /dev/null
done | sed -n -e "s/^name *= *[\"']\([^\"']*\)[\"'].*/project\t\1/p" \
    -e "s/^version *= *[\"']\([^\"']*\)[\"'].*/own\t\1/p"
sed -n '/^\[metadata\]/,/^\[/s/^name *= *\([A-Za-z0-9._-]*\) *$/project\t\1/p' "$top/setup.cfg" 2> /dev/null
sed -n "s/^ *name *= *[\"']\([A-Za-z0-9._-]*\)[\"'].*/project\t\1/p" "$top/setup.py" 2> /dev/null
{
    for python in python python3; do
        "$python" -c 'import sys; print(*sys.path, sep="\n")' 2> /dev/null | grep -e '-packages$'
    done
    for place in /usr /usr/local /opt/* /opt/*/envs/* /root/.local /home/*/.local \
        "$top"/*venv* "$top"/.venv* "$top"/.tox/*; do
        for site in "$place"/lib*/python3*/*-packages; do [ -d "$site" ] && echo "$site"; done
    done
} | sort -u | while read -r site; do
    for found in "$site"/*.dist-info "$site"/*.egg-info "$site"/*.egg; do
        [ -e "$found" ] || continue
        if grep -qs '"url": *"file:' "$found/direct_url.json"; then continue; fi
        if [ -f "$found/RECORD" ]; then grep -q '\.\(py\|so\|pyd\),' "$found/RECORD" || continue; fi
        printf 'installed\t%s\n' "$found"
    done
done
for cache in "$PIP_CACHE_DIR" "$XDG_CACHE_HOME" "$UV_CACHE_DIR" "$HOME/.cache" /root/.cache /home/*/.cache \
    /var/cache/pip; do
    [ -d "$cache" ] && find "$cache" -xdev -maxdepth 9 \( -name '*.whl' -o -name '*.tar.gz' -o -name '*.zip' \
        -o -name '*.egg' -o -name '*.dist-info' \) -print 2> /dev/null
done | sort -u | sed 's/^/cached\t/'
ls -d /opt/*/pkgs/*-*-* /tmp/*.whl /tmp/*.tar.gz /tmp/*/*.whl /tmp/*/*.tar.gz 2> /dev/null |
    sed 's/^/cached\t/'
for cache in "$PIP_CACHE_DIR" "$XDG_CACHE_HOME/pip" "$HOME/.cache/pip" /root/.cache/pip /home/*/.cache/pip \
    /var/cache/pip; do
    [ -d "$cache" ] && find "$cache"/http* -type f -size +1k 2> /dev/null
done | sort -u | while read -r file; do
    { tail -c 200000 "$file" | grep -aoE '[A-Za-z0-9_.]+-[0-9][A-Za-z0-9_.!+]*\.dist-info/' | head -1
      head -c 100000 "$file" | gzip -dc 2> /dev/null | tar -tf - 2> /dev/null | head -1 | cut -d / -f 1
    } | sed 's/^/cached\t/'
done
"""
"""Shell, run in a repository: lines of a kind, a tab and what was found: names and versions that the project
gives itself, copies of distributions that are not made of its files, archives and entries of caches."""

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*?)-(?P<version>\d[A-Za-z0-9.!+_]*)")
_ENDING = re.compile(r"(\.tar\.\w+|\.zip|\.whl|\.conda|\.egg(-info)?|\.dist-info)?/?$")


def newer_releases(lines: Iterable[str], repo: str, version: str = "") -> list[str]:
    """What was found that is a newer release of the project's package than the project itself, in the order
    of the lines.

    The project's version is what it says itself, else `version`, of which later digits are unknown. A release
    is newer where nothing says what the project's is.
    """
    facts = [line.rstrip("\n").partition("\t") for line in lines if "\t" in line]
    names = {repo_name(value) for kind, _, value in facts if kind == "project" and value} or {repo_name(repo)}
    own = [found for kind, _, value in facts if kind == "own" and (found := _version(value))]
    limit, whole = (max(own), True) if own else (_version(version), False)
    late = []
    for kind, _, value in facts:
        if kind not in ("installed", "cached"):
            continue
        named = _NAMED.match(_ENDING.sub("", value.rstrip("/").rpartition("/")[2]))
        if named is None or repo_name(named["name"]) not in names:
            continue
        release = _version(named["version"])
        if release is None or limit is None or _is_newer(release, limit, whole):
            late.append(f"{repo_name(named['name'])} {named['version']} is {kind}: {value}")
    return list(dict.fromkeys(late))


def _is_newer(release: Version, limit: Version, whole: bool) -> bool:
    if whole:
        return release > limit
    return release.release[: len(limit.release)] > limit.release


def _version(text: str) -> Version | None:
    try:
        return Version(text.strip())
    except InvalidVersion:
        return None
