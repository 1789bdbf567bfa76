"""The last sequences of the embedded server's streams, by which a later start knows that one lost its end."""

from pathlib import Path

import msgspec

from orchard.streams.connection import Connection

_JSZ = "$SYS.REQ.SERVER.PING.JSZ"
_FILE = "last-seen.json"


class _State(msgspec.Struct, frozen=True):
    last_seq: int = 0


class _Config(msgspec.Struct, frozen=True):
    storage: str = "file"


class _Stream(msgspec.Struct, frozen=True):
    name: str
    state: _State = _State()
    config: _Config = _Config()


class _Account(msgspec.Struct, frozen=True):
    stream_detail: tuple[_Stream, ...] = ()


class _Data(msgspec.Struct, frozen=True):
    account_details: tuple[_Account, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    data: _Data = _Data()


async def last_sequences(connection: Connection) -> dict[str, int]:
    """Asks for the last sequence of each stream on disk; `connection` is the admin's. Raises NatsError,
    TimeoutError."""
    wanted = b'{"accounts":true,"streams":true,"config":true}'
    answer = await connection.nats.request(_JSZ, wanted, timeout=5.0)
    accounts = msgspec.json.decode(answer.data, type=_Answer).data.account_details
    streams = [stream for account in accounts for stream in account.stream_detail]
    return {stream.name: stream.state.last_seq for stream in streams if stream.config.storage == "file"}


def read_last_sequences(store: Path) -> dict[str, int]:
    """Reads what `write_last_sequences` has written for this server's store; empty before."""
    try:
        return msgspec.json.decode((store / _FILE).read_bytes(), type=dict[str, int])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def write_last_sequences(store: Path, sequences: dict[str, int]) -> None:
    new = store / f"{_FILE}.new"
    new.write_bytes(msgspec.json.encode(sequences))
    new.replace(store / _FILE)


def lost_ends(seen: dict[str, int], now: dict[str, int]) -> list[str]:
    """Describes each stream that does not reach its earlier end, in a sentence."""
    return [
        f"the stream {name} ends at {now.get(name, 0)} and had reached {last}: the server has lost its end"
        for name, last in sorted(seen.items())
        if now.get(name, 0) < last
    ]
