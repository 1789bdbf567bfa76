"""Tracks the sandboxes that a client made, to delete them when the process ends.

Covered are an orderly exit (atexit), and SIGTERM and SIGHUP if nobody handles them, because Python then ends
without running atexit. SIGINT needs nothing of its own: KeyboardInterrupt leads to an orderly exit. After
SIGKILL the service expires unused sandboxes (`ttl_seconds`). A forked child owns nothing of its parent's: its
ledgers are empty, so the parent's sandboxes stay, however the child ends.
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
"""Timeout in seconds of one deletion at the end of the process."""
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class CreatedSandboxes:
    def __init__(
        self, url: str, headers: Mapping[str, str], *, at_exit: bool, tls: ssl.SSLContext | None = None
    ) -> None:
        """`url`, `headers` and `tls` as in the client's requests; `at_exit`: delete when the process ends."""
        self._url = url
        self._tls = tls
        self._headers = dict(headers)
        self._made: dict[str, None] = {}
        if at_exit:
            _instances.append(self)
            _listen_for_signals()

    def add(self, sandbox_id: str) -> None:
        self._made[sandbox_id] = None

    def remove(self, sandbox_id: str) -> None:
        self._made.pop(sandbox_id, None)

    def ids(self) -> list[str]:
        return list(self._made)

    def close(self) -> None:
        """Stop deleting at exit."""
        if self in _instances:
            _instances.remove(self)

    def forget(self) -> None:
        """Drop all entries, in a forked child."""
        self._made.clear()

    def delete_all(self) -> None:
        """Delete the remaining sandboxes by blocking requests: this late there is no event loop and no
        thread."""
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


_instances: list[CreatedSandboxes] = []


def _listen_for_signals() -> None:
    """Handle signals that would end the process without atexit. Only a main thread can."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end_by_signal)


def _end_by_signal(number: int, _frame: FrameType | None) -> None:
    """Delete the sandboxes, then die by the signal.

    It may interrupt anything, so it writes to no stream; and further signals do not interrupt it.
    """
    for one in SIGNALS:
        if signal.getsignal(one) is _end_by_signal:
            signal.signal(one, signal.SIG_IGN)
    _delete_everything()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # the parent sees how we ended


@atexit.register
def _delete_everything() -> None:
    for created in list(_instances):
        created.delete_all()


def _complain(sentence: str) -> None:
    """Write to standard error without streams or loggers, whose lock the interrupted code may hold."""
    with suppress(OSError):
        os.write(2, f"orchard: {sentence}\n".encode(errors="replace"))


def _forget_the_parents() -> None:
    for created in _instances:
        created.forget()


os.register_at_fork(after_in_child=_forget_the_parents)
