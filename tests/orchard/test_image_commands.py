"""`orchard images`: pulls with the credentials of a user, one that is killed, deletion, builds."""

import base64
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchard import SandboxClient
from orchard.cli.app import app
from orchard.injector.agent.local.archives import import_image
from orchard.injector.agent.local.images import ImageStore
from orchard.injector.registry_credentials import CredentialsError, stored_credentials
from tests.injector import registry as registries
from tests.injector.conftest import Archives, Service
from tests.injector.registry import Registry

pytestmark = pytest.mark.needs_root("layers have owners")
SECRET = "correct horse"
DEADLINE = 200.0


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry().serving() as running:
        yield running


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    return Archives(tmp_path)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of the sandboxes."""
    return tmp_path / "state" / "sandboxes"


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def images(state: Path) -> Command:
    """Runs `orchard images`; exit status, and all that it says."""

    def run(*words: str, given: str | None = None) -> tuple[int, str]:
        line = ["--state", str(state.parent), "--store", str(state.parent), "images", *words]
        done = CliRunner().invoke(app, line, input=given)
        return done.exit_code, f"{done.output} {done.exception or ''}"

    return run


def login(place: Path, registry: str, entry: dict[str, str] | None, **more: object) -> Path:
    """A config.json as `docker login` writes it."""
    place.mkdir(exist_ok=True)
    auths = {} if entry is None else {registry: entry}
    (place / "config.json").write_text(json.dumps({"auths": auths, **more}))
    return place


def encoded(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.long
def test_a_pull_shows_what_docker_login_stored_or_what_stdin_says(
    registry: Registry,
    archives: Archives,
    images: Command,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry.account = ("me", SECRET)
    registry.push("1", archives.layer(("x", b"", 0o644)))
    name = f"{registry.address}/tools/tiny:1"
    monkeypatch.setenv(
        "DOCKER_CONFIG", str(login(tmp_path / "docker", "other.example", encoded("me", SECRET)))
    )
    status, said = images("pull", name)
    assert status == 1 and "user and password" in said
    assert ImageStore(state).names() == []
    login(tmp_path / "docker", registry.address, encoded("me", SECRET))
    status, said = images("pull", name)
    assert (status, ImageStore(state).names()) == (0, [name]) and SECRET not in said

    login(tmp_path / "docker", registry.address, None)
    status, said = images(
        "pull", name, "--name", "mine:1", "--user", "me", "--password-stdin", given=SECRET + "\n"
    )
    assert (status, ImageStore(state).names()) == (0, [name, "mine:1"]) and SECRET not in said
    for words in (["--user", "me"], ["--password-stdin"]):
        status, said = images("pull", name, *words, given=SECRET)
        assert status == 1 and "go together" in said
    stored = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    assert SECRET.encode() not in stored


def test_credentials_are_found_as_docker_finds_them(tmp_path: Path) -> None:
    entry = encoded("me", "a:b")
    for written, reference in (
        ("registry.example:5000", "registry.example:5000/a/b:1"),
        ("https://registry.example", "registry.example/a@sha256:" + "0" * 64),
        ("https://index.docker.io/v1/", "debian:12"),
        ("https://index.docker.io/v1/", "docker.io/library/debian"),
    ):
        config = login(tmp_path, written, entry) / "config.json"
        assert stored_credentials(reference, config) == {"username": "me", "password": "a:b"}
        assert stored_credentials("elsewhere.example/a:1", config) is None
    for text in ("no json", "[]", '{"auths": {"r.example": {"auth": "%"}}}', '{"auths": 3}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CredentialsError, match=r"config\.json"):
            stored_credentials("r.example/a:1", tmp_path / "config.json")
    login(tmp_path, "r.example", None, credHelpers={"r.example": "pass"})
    with pytest.raises(CredentialsError, match="--password-stdin"):
        stored_credentials("r.example/a:1", tmp_path / "config.json")


@pytest.mark.long
def test_a_pull_that_is_killed_leaves_nothing_and_the_next_one_succeeds(
    registry: Registry, archives: Archives, state: Path, images: Command
) -> None:
    first, second = (archives.layer((name, name.encode() * 100_000, 0o644)) for name in ("one", "two"))
    manifest = registry.push("1", first, second)
    digest = manifest["layers"][1]["digest"]
    name = f"{registry.address}/tools/tiny:1"
    line = [sys.executable, "-m", "orchard", "--state", str(state.parent), "images", "pull", name]
    deadline = time.monotonic() + DEADLINE
    for kill in range(
        3
    ):  # each of a process's threads tells its children of its end: some at an awkward time
        registry.faults[digest] = [registries.stalled]
        pulling = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while registry.asked(digest) == kill:
            assert pulling.poll() is None and time.monotonic() < deadline, "the second layer is asked for"
            time.sleep(0.01)
        pulling.send_signal(signal.SIGKILL)
        pulling.wait()
        while any((state / "tmp").iterdir()):  # what it had started cleans up
            assert time.monotonic() < deadline, "no unfinished work is left"
            time.sleep(0.01)
    assert ImageStore(state).names() == [] and list((state / "layers").iterdir()) == []

    status, said = images("pull", name)
    assert status == 0, said
    assert [
        (state / "layers" / layer / f).stat().st_size
        for layer, f in zip(ImageStore(state).find(name).layers, ("two", "one"), strict=True)
    ] == [300_000, 300_000]


def test_an_image_is_deleted_unless_a_sandbox_was_made_from_it(
    state: Path, archives: Archives, images: Command
) -> None:
    """With an agent and without one."""
    layers = [archives.layer((name, b"x", 0o644)) for name in ("shared", "own")]
    import_image(state, archives.docker("keeps:1", layers[0]))
    import_image(state, archives.docker("gone:1", *layers))
    status, said = images("delete", "no:1")
    assert status == 1 and "there is no image `no:1`" in said
    assert "cannot be deleted" in images("delete", "host")[1]
    assert images("delete", "gone:1")[0] == 0
    assert ImageStore(state).names() == ["keeps:1"]

    import_image(state, archives.docker("used:1", *layers))
    service = Service(state)
    try:
        with SandboxClient(service.url) as client:
            made = client.create_sandbox("used:1")
            status, said = images("delete", "used:1")
            assert status == 1 and "in use" in said and "delete them first" in said
            made.delete()
            assert images("delete", "used:1")[0] == 0
            assert [image.name for image in client.list_images()] == ["keeps:1"]
    finally:
        service.stop()
    store = ImageStore(state)
    store.clean()  # as the next agent does: while `host` is made, layers stay
    kept = {path.name for path in (state / "layers").iterdir() if path.name.startswith("sha256-")}
    assert kept == set(store.find("keeps:1").layers)


CONTAINERFILE = """\
FROM scratch
COPY --chown=1000:2000 app /srv/app
COPY busybox /bin/sh
ENV GREETING="hello there" PATH=/bin
WORKDIR /srv/app
USER 1000:2000
"""


@pytest.mark.slow
def test_a_containerfile_is_built_by_buildah_and_its_image_used(state: Path, tmp_path: Path) -> None:
    assert shutil.which("buildah"), "install buildah (Debian: `apt-get install buildah`)"
    context = tmp_path / "context"
    (context / "app").mkdir(parents=True)
    (context / "app" / "file").write_text("from the context\n")
    shutil.copy(str(shutil.which("busybox")), context / "busybox")
    (context / "Containerfile").write_text(CONTAINERFILE)
    line = ["--state", str(state.parent), "images", "build", str(context), "--name", "ours/built:1"]
    done = subprocess.run(
        [sys.executable, "-m", "orchard", *line], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    service = Service(state)
    try:
        with SandboxClient(service.url) as client, client.create_sandbox("ours/built:1") as sandbox:
            asked = "read -r line < file; echo $line; echo $GREETING; pwd; echo x > made && echo may write"
            told = sandbox.exec(asked, cwd=".")
            assert told.stdout.splitlines() == ["from the context", "hello there", "/srv/app", "may write"], (
                told
            )
    finally:
        service.stop()
