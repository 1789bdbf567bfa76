"""Asks the embedded server whether it can still write.

nats-server 2.15.1 leaves publishes to a stream unanswered after one write to its file has failed, also when
the disk has space again, until it is started again. Its health, asked without the options that probes often
use, names the failed write; `js-enabled-only` and `js-server-only` stay `ok`.
"""

import msgspec

from orchard.streams.connection import Connection

_HEALTH = "$SYS.REQ.SERVER.PING.HEALTHZ"


class _Health(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""


class _Answer(msgspec.Struct):
    data: _Health = _Health()


async def write_error(connection: Connection) -> str:
    """Names the failed write by which a stream is stuck; empty when none is. `connection` is the admin's.

    Raises NatsError or TimeoutError when the server does not answer.
    """
    answer = await connection.nats.request(_HEALTH, b"", timeout=5.0)
    health = msgspec.json.decode(answer.data, type=_Answer).data
    return health.error if "write error" in health.error else ""
