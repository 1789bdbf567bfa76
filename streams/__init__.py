"""The wire: subjects, streams, publishing, claiming, replay, and the embedded NATS server.

Everything here works the same against the embedded server and an external `nats://` cluster. Guarantees
come from JetStream (confirmed publishes, compare-and-set on the terminal event, explicit acknowledgement),
never from memory of a process.
"""

import sys

if "aiohttp" not in sys.modules:
    # nats-py imports it for WebSocket URLs, which nobody uses here: a tenth of a second.
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats  # noqa: F401
    finally:
        del sys.modules["aiohttp"]
