"""Ends a run that is told to stop after its step, with a checkpoint of it."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from orchard.pipelines.sft.settings import TrainingError


class RunInterrupted(TrainingError):
    """A run that SIGTERM or SIGINT ended; its newest checkpoint has all of its steps."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class StopSignals:
    """Remembers SIGTERM and SIGINT while it is open; a second one has its default effect.

    A context manager. Python delivers signals to the main thread alone: opened in another, it hears
    none.
    """

    def __init__(self) -> None:
        self.heard = 0
        """Number of the first signal; 0: none."""
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._before:
                signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.heard = self.heard or number
        signal.signal(number, self._before[signal.Signals(number)])
