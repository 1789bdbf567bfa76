"""What a user can mend about a model; importable without torch."""


class ModelError(ValueError):
    """A model directory or shape that cannot be used, in one sentence that names the fix."""


def require_torch(what: str) -> None:
    """Raises ModelError where the packages of training are not installed; `what` needs them."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"{what} needs the package {error.name}: install it with `pip install 'orchard-pipeline[train]'`"
        ) from error
