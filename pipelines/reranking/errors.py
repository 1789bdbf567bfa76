"""Why there is no value model. Importable without torch."""


class RerankError(ValueError):
    """A value model cannot be trained or read; the text names the fix."""
