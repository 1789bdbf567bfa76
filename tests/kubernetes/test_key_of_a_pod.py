"""A task that is root in its Pod, with the container runtime's own rules around it, and its agent's key."""

import json
from collections.abc import Callable
from pathlib import Path

from orchard.injector.agent.signing import sandbox_key
from orchard.injector.client import AsyncSandbox
from orchard.injector.kubernetes.pod_metadata import AGENT
from tests.injector import intruder
from tests.kubernetes.conftest import Cluster, Service

SEARCH = """
import os, sys
secrets = [bytes.fromhex(sys.argv[1][::-1]), sys.argv[1][::-1].encode()]
def look(path):
    try:
        with open(path, "rb") as file:
            content = file.read(1 << 26)
    except OSError:
        return
    if any(secret in content for secret in secrets):
        print(path)
open("/tmp/control", "wb").write(secrets[0])
for place, directories, files in os.walk("/"):
    if place == "/":
        directories[:] = [name for name in directories if name not in ("proc", "sys")]
    for name in files:
        if os.path.isfile(f"{place}/{name}"):
            look(f"{place}/{name}")
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "mountinfo"):
        look(f"/proc/{pid}/{name}")
"""
"""Every file of the container, and what processes were started with, for a key that is given backwards."""


async def test_root_can_neither_find_it_nor_look_where_it_is(
    cluster: Cluster, namespace: str, orchestrator: Callable[..., Service], agent_secret: str
) -> None:
    async with orchestrator().client() as client:
        sandbox = await client.create_sandbox(cluster.images.full, cpu="1", memory="512Mi", timeout=60)
        (pod,) = cluster.get("pods", namespace)
        agent, uid = pod["metadata"]["labels"][AGENT], pod["metadata"]["uid"]
        key = sandbox_key(agent_secret.encode(), agent, uid).hex()

        found = await run(sandbox, SEARCH, key[::-1])
        assert found == "/tmp/control\n"

        spawner = (await sandbox.exec("cat /proc/1/task/1/children", cwd="/")).stdout.split()[0]
        looked = await run(sandbox, Path(intruder.__file__).read_text(), "self-test", "1", spawner)
        worked = json.loads(looked)
        assert {"memory", "environ", "descriptors", "trace"} <= set(worked["self-test"])
        assert (worked["1"], worked[spawner]) == ([], [])


async def run(sandbox: AsyncSandbox, code: str, *arguments: str) -> str:
    job = await sandbox.exec(["python3", "-c", code, *arguments], cwd="/")
    assert (job.exit_code, job.stderr) == (0, "")
    return job.stdout
