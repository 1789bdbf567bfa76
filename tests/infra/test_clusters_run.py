"""Other people's clusters, run here: the processes of an example's manifests finish a campaign.

Addresses and paths are replaced, everything else is as the chart renders it: one NATS server from its
configuration, NATS of a provider by credentials files, model calls through a company's proxy. No KEDA: the
Deployments' workers run all the time.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from orchard.streams.server import find_binary
from tests.chaos.world import until
from tests.company_proxy import CompanyProxy
from tests.infra.conftest import (
    Manifest,
    Manifests,
    Server,
    containers,
    free_ports,
    listening,
    password_variables,
    pod_template,
)
from tests.infra.jwt_accounts import operator_mode
from tests.infra.test_chart import CHART, rendered
from tests.infra.test_smoke import (
    PYTHON,
    TASKS,
    Place,
    accounted_for,
    conserved,
    submitted,
    without_workers,
)

WORKER = "rollout-swe-normal"
WORKERS = 2


def manifests(*examples: str) -> Manifests:
    files = [CHART / "values-kind.yaml", *(CHART / "examples" / f"{name}.yaml" for name in examples)]
    return Manifests(rendered(*(word for file in files for word in ("--values", str(file)))))


@asynccontextmanager
async def served(configuration: str, secrets: Path, home: Path, **variables: str) -> AsyncIterator[Server]:
    """A server with this configuration."""
    (home / "nats.conf").write_text(f'{configuration}\nports_file_dir: "{home}"\n')
    process = await asyncio.create_subprocess_exec(
        str(find_binary()),
        *("-c", str(home / "nats.conf")),
        env={**os.environ, **password_variables(secrets), **variables},
    )
    try:
        ports = await listening(home)
        yield Server(
            url=f"tls://localhost:{ports['nats'][0].rpartition(':')[2]}",
            monitoring="",
            ca=secrets / "orchard" / "nats-tls" / "ca.crt",
        )
    finally:
        process.terminate()
        await process.wait()


class Cluster(Place):
    """A place whose Pods have something mounted."""

    def __init__(
        self, manifests: Manifests, secrets: Path, server: Server, store: Path, mounted: Mapping[str, str]
    ) -> None:
        """`mounted` has this machine's path of what a Pod has at a path, or the Secret's key for it."""
        super().__init__(manifests, secrets, server, store)
        self._mounted = mounted

    def environment(self, container: Manifest) -> dict[str, str]:
        found = super().environment(container)
        pod, *_ = [pod for _, pod in self.manifests.pods() if container in containers(pod)]
        for volume in pod["spec"]["volumes"]:
            if volume["name"] == "credentials":
                found["ORCHARD_NATS__CREDENTIALS"] = self._mounted[volume["secret"]["items"][0]["key"]]
        for variable in container.get("env", []):
            if variable["name"] == "ORCHARD_CONFIG" and variable["value"] in self._mounted:
                found |= {"ORCHARD_CONFIG": variable["value"], "OPENAI_API_KEY": "of the Secret model-keys"}
        return {name: self._mounted.get(value, value) for name, value in found.items()}


def worker_in(items: Manifests) -> Manifest:
    return containers(pod_template(items.one("Deployment", WORKER)))[-1]


async def campaign(place: Place, home: Path, *models: str) -> None:
    """Runs a campaign by the workers of the Deployment, which run on when it is over, and drain when told."""
    worker = worker_in(place.manifests)
    assert "--idle-exit" not in worker["args"]
    async with without_workers(place, home), AsyncExitStack() as stack:
        await submitted(place, *models)
        (port,) = free_ports(1)
        place.oracle = f"http://127.0.0.1:{port}/v1"
        sidecar = place.container("Deployment", WORKER)
        await stack.enter_async_context(
            place.running(sidecar, PYTHON, "-m", "orchard", "oracle", "--port", str(port))
        )
        command = [PYTHON, "-m", "orchard", *worker["args"]]
        workers = [await stack.enter_async_context(place.running(worker, *command)) for _ in range(WORKERS)]
        await until(lambda: accounted_for(place.store) == TASKS, "the outcomes to be in the tables")
        assert [process.returncode for process in workers] == [None] * WORKERS
        for process in workers:
            process.terminate()
        assert [await asyncio.wait_for(process.wait(), 60) for process in workers] == [0] * WORKERS
        await conserved(place)


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, f"the configuration has no {old}"
        text = text.replace(old, new)
    return text


@asynccontextmanager
async def one_server(items: Manifests, secrets: Path, home: Path) -> AsyncIterator[Server]:
    """The one NATS server of the manifests."""
    data = items.one("ConfigMap", "nats")["data"]
    (home / "accounts.conf").write_text(data["accounts.conf"])
    configuration = replaced(
        data["nats.conf"],
        {
            "listen: 0.0.0.0:4222": "listen: 127.0.0.1:-1",
            "http: 0.0.0.0:8222": "http: 127.0.0.1:-1",
            "/data": str(home / "data"),
            "/run/nats": str(home),
            "/etc/nats/tls": str(secrets / "orchard" / "nats-tls"),
        },
    )
    own = {"POD_NAME": "nats-0", "CLIENT_ADVERTISE": "localhost:4222"}
    async with served(configuration, secrets, home, **own) as server:
        yield server


@pytest.mark.slow
async def test_without_keda_and_with_one_nats_server(secrets: Path, tmp_path: Path) -> None:
    items = manifests("no-keda", "one-nats")
    async with one_server(items, secrets, tmp_path) as server:
        place = Cluster(items, secrets, server, tmp_path / "store", {})
        await campaign(place, tmp_path, "--model", "oracle")


@pytest.mark.slow
async def test_model_calls_through_a_proxy_with_an_authority_of_its_own(
    secrets: Path, tmp_path: Path
) -> None:
    """By the proxy's variables and the bundle of authorities that the chart renders, to the model server of
    the values; NATS and sandboxes are reached without the proxy."""
    items = manifests("no-keda", "one-nats", "proxy")
    models = tmp_path / "orchard.toml"
    models.write_text(items.one("ConfigMap", "models")["data"]["orchard.toml"])
    async with one_server(items, secrets, tmp_path) as server:
        mounted: dict[str, str] = {}
        place = Cluster(items, secrets, server, tmp_path / "store", mounted)
        proxy = CompanyProxy("models.example", lambda: place.oracle, tmp_path)
        async with proxy.running():
            mounted |= {
                "http://proxy.example:3128": proxy.url,
                "/etc/ssl/certs/ca-certificates.crt": str(proxy.authority),
                "/etc/orchard/models/orchard.toml": str(models),
            }
            worker = place.environment(worker_in(items))
            assert worker["HTTPS_PROXY"] == proxy.url and "127.0.0.1" in worker["NO_PROXY"]
            assert worker["SSL_CERT_FILE"] == str(proxy.authority)
            await campaign(place, tmp_path, "--model", "oracle", "--endpoint", "default")
        assert proxy.connected.keys() == {"models.example:443"}


@pytest.mark.slow
async def test_nats_of_a_provider_by_credentials_files(
    secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each role by its own token, with the rights that the chart's accounts have; the server is in operator
    mode, and its certificate that of an authority of the system."""
    items = manifests("nats-credentials")
    tls = secrets / "orchard" / "nats-tls"
    configuration = f'''
        listen: "127.0.0.1:-1"
        jetstream {{ store_dir: "{tmp_path}" }}
        max_payload: 8388608
        tls {{ cert_file: "{tls}/tls.crt", key_file: "{tls}/tls.key" }}
        {operator_mode(items.one("ConfigMap", "nats")["data"]["accounts.conf"], tmp_path)}
    '''
    monkeypatch.setattr(Place, "kept", ("PATH", "HOME", "SSL_CERT_FILE"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tls / "ca.crt"))
    files = {path.name: str(path) for path in tmp_path.glob("*.creds")}
    assert {"worker.creds", "writer.creds", "steward.creds", "operator.creds"} <= files.keys()
    async with served(configuration, secrets, tmp_path) as server:
        place = Cluster(items, secrets, server, tmp_path / "store", files)
        worker = place.environment(worker_in(items))
        assert "NATS_PASSWORD" not in worker and "ORCHARD_NATS__TLS_CA" not in worker
        await campaign(place, tmp_path, "--model", "oracle")
