"""Layers of harness programs in Pods: images that the administrator names, copied in before the agent starts.

The container that copies has the layer's image, but runs the agent's program from the agent's volume: nothing
of the layer is executed there. It fails unless the copy has the digest in the layer's name.
"""

from orchard.injector.agent.layer_files import NAME, PLACE
from orchard.injector.errors import SandboxRequestInvalid
from orchard.injector.kubernetes.objects import Manifest
from orchard.injector.kubernetes.pods import AGENT_VOLUME, installing
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import CreateSandbox, ImageInfo

CONTAINER = "layer"
_TARGET = "/layer"


def add(body: Manifest, request: CreateSandbox, settings: KubernetesSettings) -> None:
    """Add the layer that `request` names, if any, to its Pod's manifest. Raises SandboxRequestInvalid."""
    if request.programs:
        raise SandboxRequestInvalid(
            f"a cluster puts no programs on the PATH, and `{request.programs[0]}` is asked for: use an image "
            "that has it, or sandboxes of one machine"
        )
    if not request.layers:
        return
    if len(request.layers) > 1:
        raise SandboxRequestInvalid(
            f"a Pod takes one layer, and {len(request.layers)} are asked for: name one"
        )
    (name,) = request.layers
    image, match = settings.layers.get(name), NAME.fullmatch(name)
    if image is None or match is None:
        raise SandboxRequestInvalid(
            f"the cluster's administrator has named no image for the layer `{name}`: write it with `orchard "
            "harness install PROGRAM --archive FILE`, push it, and name it in `layers` of kubernetes.toml"
        )
    spec, main = body["spec"], body["spec"]["containers"][0]
    resources = {kind: dict(amounts) for kind, amounts in main["resources"].items()}
    size = resources["limits"]["ephemeral-storage"]
    spec["volumes"].append({"name": CONTAINER, "emptyDir": {"sizeLimit": size}})
    mount = {"name": CONTAINER, "mountPath": _TARGET}
    copying = installing(["--layer", PLACE, "--into", _TARGET, "--digest", match[3]])
    spec["initContainers"].append(
        {
            **copying,
            "name": CONTAINER,
            "image": image,
            "imagePullPolicy": settings.image_pull_policy,
            # Those of the sandbox, which runs later: so the Pod asks its node for nothing more.
            "resources": resources,
            "volumeMounts": [{**AGENT_VOLUME, "readOnly": True}, mount],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    )
    main["volumeMounts"].append({"name": CONTAINER, "mountPath": PLACE, "readOnly": True})


def told(settings: KubernetesSettings) -> list[ImageInfo]:
    """List the layers in the order of the settings."""
    return [ImageInfo(name=name, layers=1, sandboxes=0, shared=True) for name in settings.layers]
