"""The error of the payload's build."""


class PayloadError(Exception):
    """One sentence that names the remedy."""
