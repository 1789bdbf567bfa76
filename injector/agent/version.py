"""The agent's version, on every answer: so an agent of another version can be told from one at fault."""

VERSION = "0.1.0"
"""That of the whole project; a constant because the payload has no package metadata."""
VERSION_HEADER = "X-Agent-Version"
UNKNOWN = "unknown"
"""Of an agent from before there was the header."""
