"""What a client made and nobody deleted yet, so that it is deleted when the process ends.

Covered are an orderly exit (atexit), and SIGTERM and SIGHUP where nobody handles them, because Python then
ends without running atexit. SIGINT needs nothing of its own: KeyboardInterrupt leads to an orderly exit.
SIGKILL leaves it to the service to expire what nobody touches (`ttl_seconds`). A forked child owns nothing of
its parent's: its ledgers are empty, so the parent's sandboxes stay, however the child ends.
"""

import atexit
import os
import signal
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType

EXIT_TIMEOUT = 10.0
"""Seconds one deletion may take at the end of the process."""
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Ledger:
    """The sandboxes of one client in this process."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, at_exit: bool, tls: ssl.SSLContext | None = None
    ) -> None:
        """`url`, `headers` and `tls` as in the client's requests; `at_exit`: delete when the process ends."""
        self._url = url
        self._tls = tls
        self._headers = dict(headers)
        self._made: dict[str, None] = {}
        if at_exit:
            _ledgers.append(self)
            _listen_for_signals()

    def add(self, sandbox_id: str) -> None:
        """It was made."""
        self._made[sandbox_id] = None

    def remove(self, sandbox_id: str) -> None:
        """It is gone; nothing when it was somebody else's."""
        self._made.pop(sandbox_id, None)

    def ids(self) -> list[str]:
        """What is left, oldest first."""
        return list(self._made)

    def close(self) -> None:
        """Leave what is left alone from now on."""
        if self in _ledgers:
            _ledgers.remove(self)

    def forget(self) -> None:
        """All of it is somebody else's."""
        self._made.clear()

    def delete_all(self) -> None:
        """Delete what is left, by plain blocking requests: this late there is no event loop and no thread."""
        for sandbox_id in self.ids():
            request = urllib.request.Request(
                f"{self._url}/sandboxes/{sandbox_id}", headers=self._headers, method="DELETE"
            )
            try:
                with urllib.request.urlopen(request, timeout=EXIT_TIMEOUT, context=self._tls):
                    self.remove(sandbox_id)
            except urllib.error.HTTPError as error:
                _complain(f"sandbox {sandbox_id} was left behind: {error}")
            except OSError as error:
                _complain(f"sandboxes were left behind: {', '.join(self.ids())}: {error}")
                return  # the service is away; the process must not wait for it once for each


_ledgers: list[Ledger] = []


def _listen_for_signals() -> None:
    """Where a signal would end the process unheard. Only a main thread may say what a signal does."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end_by_signal)


def _end_by_signal(number: int, _frame: FrameType | None) -> None:
    """It may interrupt anything at all, so it writes to no stream; and it is not interrupted by its like."""
    for one in SIGNALS:
        if signal.getsignal(one) is _end_by_signal:
            signal.signal(one, signal.SIG_IGN)
    _delete_everything()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # the parent sees how we ended


@atexit.register
def _delete_everything() -> None:
    for ledger in list(_ledgers):
        ledger.delete_all()


def _complain(sentence: str) -> None:
    """Past all streams and loggers: one of them may be what a signal interrupted, with its lock held."""
    with suppress(OSError):
        os.write(2, f"orchard: {sentence}\n".encode(errors="replace"))


def _forget_the_parents() -> None:
    for ledger in _ledgers:
        ledger.forget()


os.register_at_fork(after_in_child=_forget_the_parents)
