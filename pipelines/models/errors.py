"""What a user can mend about a model, and how torch is loaded; importable without torch."""

import os


class ModelError(ValueError):
    """A model directory or shape that cannot be used, in one sentence that names the fix."""


def require_torch(what: str) -> None:
    """Load torch; raises ModelError where the packages of training are not installed, which `what` needs.

    Call it before anything else imports torch: its threads then sleep while they wait. By default they spin,
    which on a machine that has other work to do makes everything several times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"{what} needs the package {error.name}: install it with `pip install 'orchard-pipeline[train]'`"
        ) from error
