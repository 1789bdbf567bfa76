"""`make test-kubernetes`: the tests of this folder, on the cluster of KUBECONFIG or a node made for them."""

import argparse
import os
import signal
import subprocess
import sys

from tests.kubernetes.images import NoImage
from tests.kubernetes.node import NoNode, build_binaries, running_node


def main() -> int:
    """Returns pytest's exit status, or 2 when there is no cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="store_true", help="only build what the node needs, once")
    options, words = parser.parse_known_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background jobs ignore the latter
        signal.signal(number, signal.default_int_handler)
    try:
        if options.build:
            build_binaries()
            return 0
        pytest = [sys.executable, "-m", "pytest", *(words or ["tests/kubernetes"])]
        if os.environ.get("KUBECONFIG"):
            return subprocess.call(pytest)
        with running_node() as node:
            return _call(node.inside(*pytest), {**os.environ, "KUBECONFIG": str(node.kubeconfig)})
    except (NoNode, NoImage) as reason:
        print(reason, file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130


def _call(command: list[str], environment: dict[str, str]) -> int:
    """As subprocess.call, but pytest gets the time to clean up after an interruption, in the cluster too."""
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


if __name__ == "__main__":
    sys.exit(main())
