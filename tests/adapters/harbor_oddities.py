"""What people, editors and other systems leave in a task directory: odd numbers, names, encodings, links."""

import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ODD_VALUES = (
    *('"60"', "60.0", "6e1", "0x3C", "1_000", "+1", "-0", "-0.0", "0.0000001", "1e400", "-inf", "nan"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "1e16", "4294967296"),
    *("true", "false", "[]", "{}", '[""]', '""', '" "', '"\\u0000"', '"a\\nb"', '"é"', "'''x'''"),
    *("2026-01-01", "2026-01-01T00:00:00Z", "12:00:00", '["a", 1]', "{a = 1}", "[[]]"),
)
UNKNOWN = ("strange = 1", "'a b' = {c = [1]}", '"" = "x"', "é_1.b = 2", "timeout = 3", "user_name = 'x'")
TABLES = (
    "[agent.more]\nx = 1\n",
    "[environment.healthcheck]\ncommand = 'true'\nstrange = 1\n",
    "[verifier.environment]\nstrange = 1\n",
    "[[verifier.collect]]\ncommand = 'ls'\nstrange = 1\n",
    "[[artifacts]]\nsource = '/a'\nstrange = 1\n",
    "[solution]\nstrange = 1\nenv.A = 'x'\n",
    "[task]\nname = 'a/b'\nstrange = 1\nauthors = [{name = 'a', strange = 1}]\n",
    "[strange]\nx = 1\n[strange.agent]\nuser = 1\n",
    "[[strange]]\nx = 1\n",
    "[metadata]\nagent = {timeout_sec = 1}\n",
    "[environment.env]\nA = 'x'\nA.B = 1\n",
    "[environment.env]\n'A B' = 'x'\n",
    "[verifier.env]\nA = ' x '\nB = \"$\"\nC = '${A}${B}'\nD = '${X:-}'\nE = '${X:-a}b}'\nF = '${}'\n",
    "[verifier.env]\nA = '${X:-a\\nb}'\nB = \"${X:-a\\nb}\"\nC = '$X'\nD = '${X-a}'\nE = '$${X}'\n",
    '[verifier.env]\nA = "${X\\n}"\nB = "${X:-a}\\n"\n',
    "[agent]\nnetwork_mode = 'Public'\n",
)
ARTIFACTS = (
    "['/a', '/a']",
    "['/a/b', '/a']",
    "['/a', '/a/b']",
    "['/a/', '/a']",
    "['//a']",
    "['/a/./b']",
    "['/']",
    "['/.']",
    "[' /a']",
    "['/logs/artifacts', '/logs']",
    "['/logs/artifacts/', '/b']",
    "[{source = '/a', destination = 'x'}, {source = '/b', destination = 'x'}]",
    "[{source = '/a', destination = 'x'}, {source = '/b', destination = 'x/y'}]",
    "[{source = '/a', destination = 'b'}, '/b']",
    "[{source = '/a', destination = ''}]",
    "[{source = '/a', service = 'db'}, '/a']",
    "[{source = '/a', service = 'db'}, '/b']",
    "['/b', {source = '/a', service = ' db '}, {source = '/a/c', service = 'db'}]",
    "[{source = '/logs/artifacts', service = 'db'}]",
    "[{source = 'C:/a', service = 'db'}]",
    "[{source = '/a', service = 'main', destination = 'x'}]",
)
DOCKERFILES = (
    "",
    'FROM debian:12 AS base\nWORKDIR /one\nFROM base\nUSER 1000\nENTRYPOINT ["x"]\n',
    "ARG V=12\nFROM debian:$V\nARG W=/two\nWORKDIR $W\n",
    "FROM debian:12\nRUN <<EOF\nWORKDIR /no\nEOF\nworkdir /yes\\\n/more\n",
    "# syntax=docker/dockerfile:1\r\nFROM debian:12\r\nWORKDIR /three\r\nUSER nobody\r\n",
    'FROM debian:12\nHEALTHCHECK CMD true\nSHELL ["/bin/sh", "-c"]\nWORKDIR "/a b"\nVOLUME /v\n',
)
NAMES = (
    "a b.txt",
    "é.txt",
    "e\u0301.txt",
    "日本",
    "-rf",
    "'q'\"",
    "a\nb",
    "$HOME",
    "*",
    ".hidden",
    "x\\y",
    "~",
)
PLACES = (
    *(
        "task.toml",
        "instruction.md",
        "tests/test.sh",
        "tests",
        "solution",
        "environment",
        "solution/solve.sh",
    ),
    *("environment/Dockerfile", "environment/docker-compose.yaml", "steps", "steps/step-0", "README.md"),
)


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def _value(path: Path, chance: random.Random) -> None:
    """Another value for one key of task.toml."""
    file = path / "task.toml"
    lines = _text(file).split("\n")
    keys = [number for number, line in enumerate(lines) if re.match(r"[a-z_.]+ = ", line)]
    if keys:
        number = chance.choice(keys)
        lines[number] = lines[number].partition(" = ")[0] + " = " + chance.choice(ODD_VALUES)
        file.write_text("\n".join(lines))


def _key(path: Path, chance: random.Random) -> None:
    """A line more anywhere in task.toml, or one of its lines once more."""
    file = path / "task.toml"
    lines = _text(file).split("\n")
    said = chance.choice([*UNKNOWN, chance.choice(lines)])
    lines.insert(chance.randrange(len(lines) + 1), said)
    file.write_text("\n".join(lines))


def _table(path: Path, chance: random.Random) -> None:
    with (path / "task.toml").open("a") as file:
        file.write(chance.choice(TABLES))


def _artifacts(path: Path, chance: random.Random) -> None:
    file = path / "task.toml"
    said = f"artifacts = {chance.choice(ARTIFACTS)}\n" + (
        'verifier.environment_mode = "separate"\n' if chance.random() < 0.7 else ""
    )
    file.write_text(said + _text(file))
    if chance.random() < 0.6:
        _compose(path, "{image: db:1, command: serve, expose: [80]}")


def _compose(path: Path, service: str) -> None:
    (path / "environment").mkdir(exist_ok=True)
    text = f"services:\n  main: {{}}\n  db: {service}\n"
    (path / "environment" / "docker-compose.yaml").write_text(text)


def _encoding(path: Path, chance: random.Random) -> None:
    """A text file as another editor writes it."""
    file = path / chance.choice(["task.toml", "instruction.md", "tests/test.sh", "solution/solve.sh"])
    if not file.is_file():
        return
    data = file.read_bytes()
    ways: tuple[bytes, ...] = (
        b"\xef\xbb\xbf" + data,
        data.decode(errors="replace").encode("utf-16"),
        data.replace(b"\n", b"\r\n"),
        data.replace(b"\n", b"\r"),
        data.rstrip(b"\n"),
        data + b"\n\n\x00",
        data + "é\u2028 \U0001f600".encode(),
        data + b"\xe9\n",
        b"",
        b"\n \n",
        b"\x0c<!-- canary -->\r\n\r\n" + data,
        b"# x\n" + data,
        b"<!-- harbor-canary -->" + data,
        b"\n# canary\n" + data,
    )
    file.write_bytes(chance.choice(ways))


def _names(path: Path, chance: random.Random) -> None:
    folder = path / chance.choice(["tests", "solution", "environment", "steps/step-0/workdir", "tests/a/b/c"])
    folder.mkdir(parents=True, exist_ok=True)
    for name in chance.sample(NAMES, 2):
        (folder / name).write_bytes(chance.choice([b"", b"x", b"\xff\x00", b"a\r\nb"]))


def _folder(path: Path, chance: random.Random) -> None:
    """A directory, a link or nothing where a file is, or a file where a directory is."""
    name = chance.choice(PLACES)
    place, kept = path / name, path / "kept"
    place.parent.mkdir(parents=True, exist_ok=True)
    if kept.exists():
        return
    how = chance.choice(["directory", "file", "link", "absolute", "broken"])
    if place.exists():
        place.rename(kept)
    if how == "directory":
        place.mkdir()
    elif how == "file":
        place.write_text("")
    elif how == "link" and kept.exists():
        place.symlink_to(Path(*[".."] * name.count("/"), "kept"))
    elif how == "absolute" and kept.exists():
        place.symlink_to(kept.resolve())
    else:
        place.symlink_to("nowhere")


def _dockerfile(path: Path, chance: random.Random) -> None:
    file = path / chance.choice(["environment", "environment", "tests"]) / "Dockerfile"
    file.parent.mkdir(exist_ok=True)
    file.write_text(chance.choice(DOCKERFILES), newline="")


def _service(path: Path, chance: random.Random) -> None:
    said = (
        "{image: db:1, command: serve, ports: ['80']}",
        "{image: db:1, command: serve, expose: [80, '80']}",
        "{image: db:1, command: 'serve ''a b''', expose: [80-82]}",
        "{image: db:1, command: serve, expose: [80], environment: [A=1, 'B=a=b', C]}",
        "{image: db:1, command: serve, expose: [80], environment: {A: 1.5, B: true, C: null}}",
        "{image: db:1, command: serve, expose: [80], user: '1:2'}",
        "{image: db:1, command: serve, expose: ['x']}",
        "{image: db:1, command: serve, expose: [80], healthcheck: {test: [CMD-SHELL, 'x'], retries: '3'}}",
        "{image: db:1, command: serve, expose: [80], depends_on: [main]}",
        "null",
        "[]",
        "{image: db:1, command: serve, expose: [80], x-odd: 1}",
    )
    _compose(path, chance.choice(said))


ODDITIES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(_value, _value, _value, _key, _key, _table, _table, _artifacts, _encoding, _encoding),
    *(_names, _folder, _folder, _dockerfile, _service),
)


def odd(path: Path, chance: random.Random) -> None:
    """Makes the directory odd in one or two ways."""
    for _ in range(chance.choice([1, 1, 2])):
        oddity = chance.choice(ODDITIES)
        with suppress(OSError):  # an earlier one is in its way
            oddity(path, chance)
