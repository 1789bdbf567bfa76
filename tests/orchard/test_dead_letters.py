"""`orchard dead requeue`: what it says of each letter, and its exit status."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from orchard.cli import dead
from orchard.schemas.queues import Queue
from orchard.streams.errors import NotRequeued
from orchard.workers.attempts.deadletters import Requeued


class Letters:
    """Three dead letters, the first of which is refused."""

    def __init__(self, _connection: object) -> None:
        pass

    async def list(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(sequence=number) for number in (1, 2, 3)]

    async def requeue(self, sequence: int) -> Requeued:
        if sequence == 1:
            raise NotRequeued("letter 1 cannot be carried out")
        queue = Queue(kind="judge", domain="gui", priority="normal")
        return Requeued(queue=queue, sequence=sequence, request=None)


@asynccontextmanager
async def _connection(_name: str):
    yield None


async def _begun(*_: object, **__: object) -> None:
    pass


@pytest.fixture
def requeue(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead, "DeadLetters", Letters)
    monkeypatch.setattr(dead, "begin", _begun)  # tests/orchard/test_teams.py has the audit trail
    session = SimpleNamespace(connection=_connection)
    return lambda *words: CliRunner().invoke(dead.app, ["requeue", *words], obj=session)


def test_a_refused_letter_does_not_keep_the_others(requeue, capfd) -> None:
    done = requeue("--all")
    told = done.output + capfd.readouterr().out
    assert done.exit_code == 1
    assert "letter 1 cannot be carried out" in told
    assert "dead letter 2 is back" in told and "dead letter 3 is back" in told
    assert requeue("2", "3").exit_code == 0


@pytest.mark.parametrize("words", [(), ("3", "--all")])
def test_numbers_or_all_of_them(requeue, words) -> None:
    assert requeue(*words).exit_code == 2
