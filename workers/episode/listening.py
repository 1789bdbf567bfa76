"""Shell text that waits for TCP ports of a sandbox."""

from collections.abc import Iterable


def until_listening(ports: Iterable[int], unless: str = "false") -> str:
    """Waits until something listens at each of the ports; ends with 1 once the command `unless` succeeds."""
    return "".join(
        f"until grep -Eqi ':{port:04X} [0-9A-F]+:0000 0A' /proc/net/tcp /proc/net/tcp6; do\n"
        f"  ! {unless} || exit 1\n  sleep 0.1\ndone\n"
        for port in ports
    )
