"""Errors of datasets; each message is one sentence that names the fix."""


class DatasetError(Exception):
    """A configuration, tokenizer, directory or row is unusable."""


class ExampleError(DatasetError):
    """One conversation cannot be made an example: it is dropped and counted, the build continues."""


class MaskError(ExampleError):
    """Tokens that would train are not the assistant's own text."""
