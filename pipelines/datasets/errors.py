"""What can go wrong with a dataset, in one sentence that names the fix."""


class DatasetError(Exception):
    """A configuration, tokenizer, directory or row that no dataset can be made from or read of."""


class MaskError(DatasetError):
    """Tokens that would train are not the assistant's own text: the build fails and names the example."""
