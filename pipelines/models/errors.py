"""Errors of models that a user can fix, and how torch is loaded; importable without torch."""

import os
from importlib.util import find_spec

from orchard.schemas.installation import install_command


class ModelError(ValueError):
    """A model directory or shape is unusable; the message is one sentence that names the fix."""


def require_torch(what: str) -> None:
    """Load torch; raises ModelError where the packages of training are not installed, which `what` needs.

    Call it before anything else imports torch: its threads then sleep while they wait. By default they spin,
    which on a machine that has other work to do makes everything several times slower. And transformers draws
    no bars of its own.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch  # noqa: F401
        from transformers.utils import logging
    except ImportError as error:
        raise _missing(what, error.name) from error
    logging.disable_progress_bar()


def require_installed(what: str) -> None:
    """Check what `require_torch` checks, without loading torch: for a process that only starts others,
    seconds less."""
    for package in ("torch", "transformers"):
        require_package(package, what)


def require_package(package: str, what: str) -> None:
    """Raises ModelError where a package of training that `what` needs is not installed."""
    if find_spec(package) is None:
        raise _missing(what, package)


def _missing(what: str, package: str | None) -> ModelError:
    return ModelError(f"{what} needs the package {package}: install it with `{install_command('train')}`")
