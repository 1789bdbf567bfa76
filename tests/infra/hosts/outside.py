"""What a pipeline on several hosts finds outside of them: an S3 service, and the endpoint of a model.

`python -m tests.infra.hosts.outside ADDRESS BUCKET` serves both until it is ended; says `ready` first.
"""

import asyncio
import os
import sys
import urllib.request
from functools import partial

from moto.server import ThreadedMotoServer

from orchard.pipelines.tasks.registry import read_tasks
from orchard.workers.oracle.server import OracleServer

S3_PORT, MODEL_PORT = 9000, 9001


async def main(address: str, bucket: str) -> None:
    """Serve until ended."""
    ThreadedMotoServer(ip_address=address, port=S3_PORT, verbose=False).start()
    url = os.environ["AWS_ENDPOINT_URL"]
    await asyncio.to_thread(
        lambda: urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT")).close()
    )
    tasks = partial(read_tasks, os.environ["ORCHARD_STORE"])
    async with OracleServer(tasks, {"resolves": 1.0}, host=address, port=MODEL_PORT):
        print("ready", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
