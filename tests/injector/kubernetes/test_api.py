"""Requests to an API server that is tired, away, or says no; and creates that are sent more than once."""

import pytest

from orchard.injector.errors import SandboxConflict, SandboxRequestInvalid, SandboxUnavailable
from orchard.injector.kubernetes import api as api_module
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.creation import Creation
from orchard.injector.kubernetes.objects import Pod, PodList
from orchard.injector.kubernetes.refusals import ApiRefused
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import CreateSandbox
from tests.injector.kubernetes.api_server import PODS, ApiServer, refusal

REQUEST = CreateSandbox(image="debian:12", sandbox_id="a")


@pytest.fixture
def creation(api: ClusterApi, settings: KubernetesSettings) -> Creation:
    return Creation(api, PodCache(api, "sandboxes"), settings, "one", "print")


async def test_a_tired_server_is_asked_again(api: ClusterApi, server: ApiServer) -> None:
    server.refusals = [lambda: refusal(429), lambda: refusal(503), lambda: refusal(408), None]
    assert (await api.get(PodList, PODS)).items == []
    assert len(server.requests) == 5


async def test_one_that_stays_away_makes_the_service_unavailable(api: ClusterApi, server: ApiServer) -> None:
    server.refusals = [lambda: refusal(500, "etcd is gone")] * 9
    with pytest.raises(SandboxUnavailable, match="etcd is gone"):
        await api.get(PodList, PODS, patience=0.5)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (403, "pods is forbidden: User cannot create", SandboxUnavailable),
        (403, "exceeded quota: pods=10", SandboxUnavailable),
        (401, "Unauthorized", SandboxUnavailable),
        (422, "Pod is invalid: spec.containers[0].image", SandboxRequestInvalid),
        (409, "conflict", ApiRefused),
        (404, "not found", ApiRefused),
    ],
)
async def test_a_no_is_not_asked_again(
    api: ClusterApi, server: ApiServer, code: int, message: str, kind: type[Exception]
) -> None:
    server.refusals = [lambda: refusal(code, message)]
    with pytest.raises(kind, match=message.split(":")[0]):
        await api.get(PodList, PODS)
    assert len(server.requests) == 1


class TestCreates:
    async def test_a_conflict_with_nothing_is_not_asked_for_without_end(
        self, creation: Creation, server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("orchard.injector.kubernetes.creation.LEAVING", 0.0)
        server.refusals = [lambda: refusal(409, "conflict"), lambda: refusal(404)] * 20
        with pytest.raises(SandboxUnavailable, match="409"):
            await creation.create(REQUEST, None)

    async def test_a_create_whose_answer_is_lost_is_not_made_twice(
        self, creation: Creation, server: ApiServer
    ) -> None:
        server.refusals = [None]
        made = await creation.create(REQUEST, None)
        assert list(server.pods) == ["sandbox-a"]
        assert made.uid == server.pods["sandbox-a"].uid
        assert server.requests.count(f"POST {PODS}") == 2

    async def test_the_same_key_gets_the_same_pod(self, creation: Creation) -> None:
        first = await creation.create(REQUEST, "key")
        assert (await creation.create(REQUEST, "key")).uid == first.uid

    async def test_another_key_or_none_is_refused(self, creation: Creation) -> None:
        await creation.create(REQUEST, "key")
        for other in ("other", None):
            with pytest.raises(SandboxConflict):
                await creation.create(REQUEST, other)

    async def test_without_an_id_the_key_decides_on_any_replica(
        self, api: ClusterApi, settings: KubernetesSettings, creation: Creation
    ) -> None:
        elsewhere = Creation(api, PodCache(api, "sandboxes"), settings, "two", "print")
        request = CreateSandbox(image="debian:12")
        first = await creation.create(request, "key")
        assert (await elsewhere.create(request, "key")).uid == first.uid
        assert (await elsewhere.create(request, "another")).uid != first.uid
        assert (await elsewhere.create(request, None)).uid != (await creation.create(request, None)).uid

    async def test_a_key_of_others_is_not_written_down(self, creation: Creation) -> None:
        made: Pod = await creation.create(REQUEST, "very-secret-key")
        assert "very-secret-key" not in str(made)


def test_the_patience_with_one_request_is_shorter_than_a_reservation_lasts() -> None:
    from orchard.injector.kubernetes.reservations import LASTS

    assert 2 * (api_module.PATIENCE + api_module.REQUEST_TIMEOUT) <= LASTS
