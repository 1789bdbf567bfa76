"""The agent's version, sent with every response, which tells a version mismatch from a fault."""

VERSION = "0.1.0"
"""The project's version; a constant because the payload has no package metadata."""
VERSION_HEADER = "X-Agent-Version"
UNKNOWN = "unknown"
"""Version of agents that send no header."""
