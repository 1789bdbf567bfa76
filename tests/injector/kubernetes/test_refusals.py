"""What the API server says when it does not take a Pod; and no policy is asked the same again at once."""

import pytest

from orchard.injector.errors import SandboxError, SandboxRefused, SandboxRequestInvalid, SandboxUnavailable
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.creation import REMEMBERED, Creation, PodAdmission
from orchard.injector.kubernetes.objects import ApiStatus
from orchard.injector.kubernetes.refusals import error_of
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import CreateSandbox
from tests.injector.kubernetes.api_server import PODS, ApiServer, refusal

NO = 'pods "a" is forbidden: '
WEBHOOK = 'admission webhook "validate.kyverno.svc-fail" denied the request: '
QUOTA = "exceeded quota: sandboxes, requested: {}, used: pods=9,requests.memory=30Gi, limited: {}"

SAID = [
    # Whatever status a webhook chose: Kyverno, Gatekeeper, one without words, one that counts sandboxes.
    *((code, WEBHOOK + "it was blocked", SandboxRefused) for code in (400, 403, 404, 409, 418, 422)),
    (403, 'admission webhook "validation.gatekeeper.sh" denied the request: [repos] image', SandboxRefused),
    (400, 'admission webhook "policy.example" denied the request without explanation', SandboxRefused),
    (422, NO + "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", SandboxRefused),
    (403, WEBHOOK + "exceeded hierarchical quota in subtree", SandboxUnavailable),
    # Built-in plugins: PodSecurity, Pod security policies, LimitRanger, classes that are not there.
    (403, NO + 'violates PodSecurity "restricted:latest": runAsNonRoot != true', SandboxRefused),
    (403, NO + "PodSecurityPolicy: unable to admit pod: []", SandboxRefused),
    (403, NO + "maximum memory usage per Container is 1Gi, but limit is 2Gi", SandboxRefused),
    (403, NO + "no PriorityClass with name high was found", SandboxRefused),
    (403, NO + "failed quota: q: must specify limits.cpu", SandboxRefused),
    # Of a quota, what others use now passes, and what can never fit does not.
    (403, NO + QUOTA.format("requests.memory=4Gi", "requests.memory=32Gi"), SandboxUnavailable),
    (403, NO + QUOTA.format("requests.memory=64Gi", "requests.memory=32Gi"), SandboxRefused),
    (403, NO + "exceeded quota: pods=10", SandboxUnavailable),
    (403, NO + "status unknown for quota: compute, resources: pods", SandboxUnavailable),
    (409, 'Operation cannot be fulfilled on resourcequotas "q": the object changed', SandboxUnavailable),
    # Rights are the operator's matter.
    (403, 'pods is forbidden: User "x" cannot create resource "pods" in API group ""', SandboxUnavailable),
    (403, "<html>no</html>", SandboxUnavailable),
    (401, "Unauthorized", SandboxUnavailable),
    (422, 'Pod "a" is invalid: spec.containers[0].image: Required value', SandboxRequestInvalid),
]


@pytest.mark.parametrize(("code", "message", "kind"), SAID)
def test_what_a_refusal_means(code: int, message: str, kind: type[SandboxError]) -> None:
    error = error_of(code, ApiStatus(code=code, message=message))
    assert type(error) is kind
    assert message in error.detail, "in the other side's own words"


@pytest.mark.parametrize("code", [400, 403, 422])
async def test_what_is_not_admitted_is_not_sent_again_for_a_minute(
    api: ClusterApi, server: ApiServer, code: int
) -> None:
    """By whomever it is asked for; others are. Then the policy may have changed."""
    now = 0.0
    admission = PodAdmission(api, PODS, lambda: now)

    async def create(name: str, image: str = "debian:12") -> None:
        body = {"metadata": {"name": name, "labels": {}, "annotations": {}}, "spec": {"containers": []}}
        await admission.create(CreateSandbox(image=image, sandbox_id=name, labels={"rollout": name}), body)

    server.refusals = [lambda: refusal(code, WEBHOOK + "no such images")]
    for name in ("a", "b", "c"):
        with pytest.raises(SandboxRefused, match="no such images"):
            await create(name)
        now += REMEMBERED / 3 - 1
    assert len(server.requests) == 1
    await create("d", image="alpine:3")
    now = REMEMBERED
    await create("e")
    assert len(server.requests) == 3


async def test_a_creation_says_that_it_was_not_admitted(
    api: ClusterApi, server: ApiServer, settings: KubernetesSettings
) -> None:
    creation = Creation(api, PodCache(api, "sandboxes"), settings, "one", "print")
    server.refusals = [lambda: refusal(409, WEBHOOK + "no")]
    for _ in range(3):
        with pytest.raises(SandboxRefused):
            await creation.create(CreateSandbox(image="debian:12"), None)
    assert server.requests == [f"POST {PODS}"]
