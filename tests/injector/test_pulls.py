"""Images from registries: checked by digest, fetched once, and a registry that lies leaves nothing here."""

import asyncio
import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from backports import zstd

from orchard.injector.agent.errors import AgentError, NotFound, RequestInvalid
from orchard.injector.agent.local.images import ImageStore, StoredImage
from orchard.injector.agent.local.pulling import Pull, pull
from orchard.injector.agent.local.registry import Credentials, PullRetry, RegistryUnavailable
from orchard.injector.agent.local.ssrf_guard import local, public
from orchard.injector.client import AsyncSandboxClient
from tests.injector import registry as registries
from tests.injector.registry import INDEX, Registry

if TYPE_CHECKING:
    from tests.injector.conftest import Archives, Service

pytestmark = pytest.mark.needs_root("layers have owners")
IMPATIENT = PullRetry(tries=4, pause=0.0, second_look=0.0)
SECRET = "correct horse"


@pytest.fixture(scope="module")
def serving() -> Iterator[Registry]:
    with Registry().serving() as running:
        yield running


@pytest.fixture
def registry(serving: Registry) -> Registry:
    port = serving.port
    serving.__init__()  # type: ignore[misc]
    serving.port = port
    return serving


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def got(state: Path, registry: Registry, what: str = "tools/tiny:1", **more: Any) -> StoredImage:
    return pull(state, Pull(reference=f"{registry.address}/{what}", **more), IMPATIENT)


def left(state: Path) -> list[str]:
    """Whatever lies in the store."""
    return [
        str(path.relative_to(state))
        for part in ("images", "layers", "tmp")
        for path in (state / part).rglob("*")
    ]


async def test_a_sandbox_runs_on_what_was_pulled(
    service: "Service",
    client: AsyncSandboxClient,
    registry: Registry,
    archives: "Archives",
    tiny_shell: bytes,
) -> None:
    manifest = registry.push("1", archives.layer(("bin", None, 0o755), ("bin/sh", tiny_shell, 0o755)))
    image = await asyncio.to_thread(got, service.state, registry)
    assert image.digest == registry.put("1", manifest)
    async with await client.create_sandbox(f"{registry.address}/tools/tiny:1") as sandbox:
        assert (await sandbox.exec("hello")).stdout == "sh|-c|hello|"


def test_layers_come_once_and_are_shared(registry: Registry, archives: "Archives", state: Path) -> None:
    below, first, second = (archives.layer((name, b"x", 0o644)) for name in ("below", "first", "second"))
    one = registry.push("1", below, first)
    registry.push("2", below, second)
    here = got(state, registry, "tools/x:1"), got(state, registry, "tools/x:2")
    assert here[0].layers[-1] == here[1].layers[-1]
    assert registry.asked("blobs", one["layers"][0]["digest"]) == 1
    before = len(registry.requests)
    assert got(state, registry, "tools/x:1") == here[0]
    again = {path.rpartition("/")[2] for _, path, _ in registry.requests[before:]}
    assert again == {"token", "1", one["config"]["digest"]}


def test_a_digest_pins(registry: Registry, archives: "Archives", state: Path) -> None:
    digest = registry.put("1", registry.push("1", archives.layer(("old", b"", 0o644))))
    registry.push("1", archives.layer(("new", b"", 0o644)))
    pinned = got(state, registry, f"x:1@{digest}")
    assert pinned.digest == digest != got(state, registry, "x:1").digest
    asked = len(registry.requests)
    assert got(state, registry, f"x:1@{digest}") == pinned
    assert len(registry.requests) == asked, "what is pinned and here needs no registry"


def test_an_index_gives_the_image_of_this_machine(
    registry: Registry, archives: "Archives", state: Path
) -> None:
    ours = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    entries = []
    for system, architecture in (("unknown", "unknown"), ("linux", "s390x"), ("linux", ours)):
        digest = registry.put("part", registry.push("part", archives.layer((architecture, b"", 0o644))))
        platform = {"os": system, "architecture": architecture}
        entries.append({"digest": digest, "size": 1, "platform": platform})
    index = registry.put("many", {"mediaType": INDEX, "manifests": entries}, INDEX)
    image = got(state, registry, "x:many")
    assert image.digest == index
    assert (ImageStore(state).layer(image.layers[0]) / ours).exists()
    registry.put("others", {"mediaType": INDEX, "manifests": entries[:2]}, INDEX)
    with pytest.raises(RequestInvalid, match="no image for Linux on"):
        got(state, registry, "x:others")
    registry.push("foreign", archives.layer(("x", b"", 0o644)), architecture="s390x")
    with pytest.raises(RequestInvalid, match="s390x"):
        got(state, registry, "x:foreign")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress], ids=["plain", "gzip", "zstd"])
def test_layers_may_be_compressed(registry: Registry, archives: "Archives", state: Path, pack: Any) -> None:
    registry.push("1", archives.layer(("file", b"x" * 5_000_000, 0o644)), pack=pack)
    layer = ImageStore(state).layer(got(state, registry).layers[0])
    assert (layer / "file").read_bytes() == b"x" * 5_000_000


def packed(kind: str) -> bytes:
    noise = bytes(range(256)) * 4096
    pack = {"gzip": gzip.compress, "zstd": zstd.compress}[kind]
    whole = bytearray(pack(noise))
    whole[len(whole) // 2] ^= 0xFF
    return bytes(whole)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_what_cannot_be_decompressed_is_refused(
    registry: Registry, archives: "Archives", state: Path, kind: str
) -> None:
    registry.push("1", archives.layer(("x", b"", 0o644)), pack=lambda _: packed(kind))
    with pytest.raises(RequestInvalid):
        got(state, registry)
    assert left(state) == []


@pytest.mark.parametrize("login", ["bearer", "basic"])
def test_credentials_are_shown_where_they_are_asked_for(
    registry: Registry, archives: "Archives", state: Path, login: str
) -> None:
    registry.login, registry.account = login, ("me", SECRET)
    registry.push("1", archives.layer(("x", b"", 0o644)))
    with pytest.raises(RequestInvalid, match="user and password") as without:
        got(state, registry)
    with pytest.raises(RequestInvalid, match="user and password") as wrong:
        got(state, registry, credentials=Credentials(username="me", password="wrong"))
    assert without.value.reason == wrong.value.reason == "registry_denied"
    right = Credentials(username="me", password=SECRET)
    got(state, registry, credentials=right)
    assert SECRET not in repr(right)
    texts = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    assert SECRET.encode() not in texts


def test_a_broken_download_goes_on_where_it_broke(
    registry: Registry, archives: "Archives", state: Path
) -> None:
    layer = archives.layer(("x", bytes(range(256)) * 20_000, 0o644))
    digest = registry.push("1", layer, pack=bytes)["layers"][0]["digest"]
    registry.faults[digest] = [
        registries.cut(100_000),
        registries.status(503),
        registries.cut(0),
        registries.whole,
    ]
    registry.faults["1"] = [registries.status(500), registries.cut(10)]
    got(state, registry)
    ranges = [headers.get("Range") for _, path, headers in registry.requests if digest in path]
    assert any(ranges), ranges
    assert left(state) != []


def test_parts_that_do_not_make_a_whole_are_fetched_again(
    registry: Registry, archives: "Archives", state: Path
) -> None:
    layer = archives.layer(("x", bytes(range(256)) * 20_000, 0o644))
    digest = registry.push("1", layer, pack=bytes)["layers"][0]["digest"]

    async def another_version(request: Any, data: bytes) -> Any:
        return registries.ranged(request, bytes(len(data)))

    registry.faults[digest] = [registries.cut(1_000_000), another_version]
    assert got(state, registry).layers == ["sha256-" + hashlib.sha256(layer).hexdigest()]


def test_a_registry_that_stays_away_is_named(registry: Registry, archives: "Archives", state: Path) -> None:
    registry.push("1", archives.layer(("x", b"", 0o644)))
    registry.faults["1"] = [registries.status(503)] * 9
    with pytest.raises(RegistryUnavailable, match="503"):
        got(state, registry)
    with pytest.raises(NotFound, match="no image tools/tiny"):
        got(state, registry, "tools/tiny:2")
    with pytest.raises(RegistryUnavailable):
        pull(state, Pull(reference="127.0.0.1:1/x"), IMPATIENT)
    assert left(state) == []


@pytest.mark.parametrize("part", ["manifest", "layer"])
def test_an_image_that_is_not_there_at_the_first_look_is_pulled(
    registry: Registry, archives: "Archives", state: Path, part: str
) -> None:
    """As while it is pushed, or while one of several registries behind a name is behind."""
    manifest = registry.push("1", archives.layer(("x", b"", 0o644)))
    name = "1" if part == "manifest" else manifest["layers"][0]["digest"]
    registry.faults[name] = [registries.status(404), registries.status(503)]
    assert got(state, registry).name == f"{registry.address}/tools/tiny:1"
    assert registry.faults[name] == []


def test_an_image_is_missing_when_its_registry_says_so_twice(registry: Registry, state: Path) -> None:
    with pytest.raises(NotFound) as missing:
        got(state, registry)
    looks = registry.asked("manifests") - 1  # the first request had no token
    assert (missing.value.reason, looks) == ("image_missing", 2)


def lying(name: str, registry: Registry, archives: "Archives") -> None:
    """Make the registry's `tools/tiny:1` bad in this way."""
    good = archives.layer(("x", b"x" * 100_000, 0o644))
    manifest = registry.push("1", good, pack=bytes)
    layer = manifest["layers"][0]["digest"]
    match name:
        case "a layer of another digest":
            registry.faults[layer] = [registries.instead(b"y" * len(good))]
        case "a layer that is shorter":
            registry.faults[layer] = [registries.instead(good[:-1])] * 9
        case "a layer without end":
            registry.faults[layer] = [registries.endless]
        case "a configuration of another digest":
            config = manifest["config"]
            registry.faults[config["digest"]] = [registries.instead(b"z" * config["size"])]
        case "a manifest without end":
            registry.faults["1"] = [registries.endless]
        case "a manifest that is none":
            registry.faults["1"] = [registries.instead(b"[]")]
        case "a manifest deeper than anything":
            registry.faults["1"] = [registries.instead(b"[" * 100_000)]
        case "no digest":
            manifest["layers"][0]["digest"] = "sha256:../../../../etc/passwd"
            registry.put("1", manifest)
        case "a size that is none":
            manifest["layers"][0]["size"] = -1
            registry.put("1", manifest)
        case "layers larger than allowed":
            manifest["layers"][0]["size"] = 1 << 60
            registry.put("1", manifest)
        case "a layer that swells":
            registry.push("1", archives.layer(("x", bytes(9_000_000), 0o644)))
        case "a layer of holes":
            holes = io.BytesIO()
            with tarfile.open(fileobj=holes, mode="w", format=tarfile.PAX_FORMAT) as archive:
                info = tarfile.TarInfo("x")
                info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40)}
                archive.addfile(info)
            registry.push("1", holes.getvalue())
        case "holes that are no numbers":
            bad = io.BytesIO()
            with tarfile.open(fileobj=bad, mode="w", format=tarfile.PAX_FORMAT) as archive:
                info = tarfile.TarInfo("x")
                info.pax_headers = {"GNU.sparse.map": "x", "GNU.sparse.size": "1"}
                archive.addfile(info)
            registry.push("1", bad.getvalue())
        case "a path that climbs":
            registry.push("1", archives.layer(("fine", b"", 0o644)), archives.layer(("../../x", b"", 0o644)))
        case "another layer than the configuration says":
            other = registry.blob(archives.layer(("y", b"", 0o644)))
            manifest["layers"][0].update(other)
            registry.put("1", manifest)
        case "a redirect to a private address":
            registry.faults[layer] = [registries.redirect("https://10.0.0.1/latest")]
        case "a redirect to a name of a private address":
            registry.faults[layer] = [registries.redirect("https://0x7f000001/latest")]
        case "a redirect to this machine's own services":
            registry.faults[layer] = [registries.redirect("http://127.0.0.2:1/")]
        case "a redirect without TLS":
            registry.faults[layer] = [registries.redirect("http://93.184.215.14/")]
        case "a redirect to a file":
            registry.faults[layer] = [registries.redirect("file:///etc/shadow")]
        case "a redirect in a circle":
            registry.faults[layer] = [registries.redirect(f"/v2/tools/tiny/blobs/{layer}") for _ in range(9)]
        case "tokens from a private address":
            registry.realm = "https://169.254.169.254/latest"
        case "tokens without TLS":
            registry.realm = "http://93.184.215.14/token"
        case _:
            raise AssertionError(name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a layer of another digest", "sends sha256:"),
        ("a layer that is shorter", "ended after"),
        ("a layer without end", "sends more than"),
        ("a configuration of another digest", "sends sha256:"),
        ("a manifest without end", "sends more than"),
        ("a manifest that is none", "JSON object"),
        ("a manifest deeper than anything", "JSON object"),
        ("no digest", "where a SHA-256 digest should be"),
        ("a size that is none", "no size"),
        ("layers larger than allowed", "ORCHARD_IMAGE_LIMIT"),
        ("a layer that swells", "ORCHARD_IMAGE_LIMIT"),
        ("a layer of holes", "ORCHARD_IMAGE_LIMIT"),
        ("holes that are no numbers", "no tar archive"),
        ("a path that climbs", "leads out of the image"),
        ("another layer than the configuration says", "a layer has the digest"),
        ("a redirect to a private address", "private address 10.0.0.1"),
        ("a redirect to a name of a private address", "private address 127.0.0.1"),
        ("a redirect to this machine's own services", "only https"),
        ("a redirect without TLS", "only https"),
        ("a redirect to a file", "only https"),
        ("a redirect in a circle", "without end"),
        ("tokens from a private address", "private address 169.254.169.254"),
        ("tokens without TLS", "only https"),
    ],
)
def test_a_registry_that_lies_is_refused_and_leaves_nothing(
    registry: Registry, archives: "Archives", state: Path, name: str, sentence: str
) -> None:
    lying(name, registry, archives)
    with pytest.raises(AgentError, match=sentence) as refused:
        got(
            state,
            registry,
            credentials=Credentials(username="me", password=SECRET),
            limit=4_000_000,
        )
    assert left(state) == []
    assert SECRET not in refused.value.detail and "\n" not in refused.value.detail


def test_credentials_do_not_follow_a_redirect(registry: Registry, archives: "Archives", state: Path) -> None:
    """To another port of the registry's host, where its layers may lie, but nothing it should be shown."""
    registry.account = ("me", SECRET)
    layer = archives.layer(("x", b"x", 0o644))
    digest = registry.push("1", layer, pack=bytes)["layers"][0]["digest"]
    with Registry().serving() as other:
        other.login = ""
        other.push("1", layer, pack=bytes)
        elsewhere = f"http://{other.address}/v2/tools/tiny/blobs/{digest}"
        registry.faults[digest] = [registries.redirect(elsewhere.replace("http://", "http://you:there@"))]
        got(state, registry, credentials=Credentials(username="me", password=SECRET))
        assert [path for _, path, _ in other.requests] == [f"/v2/tools/tiny/blobs/{digest}"]
        assert "Authorization" not in other.requests[0][2]


def test_a_key_among_several_pulls_from_public_registries_only(
    registry: Registry, archives: "Archives", state: Path
) -> None:
    registry.push("1", archives.layer(("x", b"", 0o644)))
    with pytest.raises(RequestInvalid, match="public registries only"):
        got(state, registry, public_only=True)
    with pytest.raises(RequestInvalid, match="public registries only"):
        pull(state, Pull(reference=f"localhost:{registry.port}/x", public_only=True), IMPATIENT)
    assert registry.requests == []


def test_what_another_owner_has_must_be_brought_to_be_believed(
    registry: Registry, archives: "Archives", state: Path
) -> None:
    """Else a digest would be enough to read what is in somebody's layer."""
    manifest = registry.push("1", archives.layer(("secret", b"x", 0o644)), pack=bytes)
    got(state, registry, owner="one", name="mine:1")
    del registry.blobs[manifest["layers"][0]["digest"]]
    with pytest.raises(NotFound):
        got(state, registry, owner="two", name="his:1")
    assert got(state, registry, owner="one", name="mine:2").owner == "one"


def test_a_repeated_layer_is_mounted_once(registry: Registry, archives: "Archives", state: Path) -> None:
    empty, other = archives.layer(), archives.layer(("x", b"", 0o644))
    registry.push("1", empty, other, empty)
    assert len(got(state, registry).layers) == 2


@pytest.mark.parametrize("text", ["../x", "Upper/case", "x:tag with space", "http://x/y", "x@sha256:1", ""])
def test_a_name_that_is_none_is_refused(state: Path, text: str) -> None:
    with pytest.raises(RequestInvalid, match="names no image of a registry"):
        pull(state, Pull(reference=text))


def test_plain_http_is_for_this_machine_only() -> None:
    assert [
        local(host) for host in ("localhost", "127.0.0.9", "::1", "10.0.0.1", "localhost.evil.example")
    ] == [
        True,
        True,
        True,
        False,
        False,
    ]
    private = ("10.1.1.1", "169.254.169.254", "::ffff:10.0.0.1", "fe80::1%eth0", "64:ff9b::a00:1", "0.0.0.0")
    assert not any(public(address) for address in (*private, "224.0.0.1", "100.64.0.1", "::"))
    assert public("93.184.215.14") and public("2606:4700::1111")
