"""The orchestrator's processes over a cluster, with the account that infra/ gives them."""

from collections.abc import Callable

from tests.kubernetes.conftest import Cluster, Service


async def test_a_sandbox_lives_with_no_more_rights_than_infra_gives(
    cluster: Cluster, orchestrator: Callable[..., Service]
) -> None:
    service = orchestrator()
    async with service.client() as client:
        sandbox = await client.create_sandbox(cluster.images.full, cpu="1", memory="512Mi", timeout=60)
        result = await sandbox.exec("echo hello", cwd="/")
        assert (result.stdout, result.exit_code) == ("hello\n", 0)
        await sandbox.delete()
