"""A proxy of a company that reads what goes through it, with a certificate authority of its own."""

import asyncio
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from aiohttp import web


class CompanyProxy:
    """A company's proxy: it connects to one host alone, and reads what goes there with a certificate of the
    company's authority. Nobody knows that host's address."""

    HOST = "models.example"

    def __init__(self, behind: Callable[[], str], home: Path) -> None:
        """`behind` gives the address of what answers for the host; files are written to `home`."""
        self.connected: Counter[str] = Counter()
        self.url = ""
        self.authority = home / "bundle.crt"
        self._behind = behind
        self._home = home
        self._port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/{rest:.*}", self._forward)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._certified()).start()
        self._port = runner.addresses[0][1]
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            await runner.cleanup()

    def _certified(self) -> ssl.SSLContext:
        """Makes the authority and the host's certificate."""
        key, host, wanted = (self._home / name for name in ("ca.key", "host.pem", "host.csr"))
        new = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        usage = ("-addext", "keyUsage=critical,keyCertSign", "-x509", "-days", "2", "-subj", "/CN=company")
        run(*new, *usage, "-keyout", str(key), "-out", str(self.authority))
        names = self._home / "names"
        names.write_text(f"subjectAltName=DNS:{self.HOST}")
        run(*new, "-subj", f"/CN={self.HOST}", "-keyout", str(host), "-out", str(wanted))
        sign = ("openssl", "x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", str(names))
        certificate = self._home / "host.crt"
        issuer = ("-CA", str(self.authority), "-CAkey", str(key))
        run(*sign, *issuer, "-in", str(wanted), "-out", str(certificate))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, host)
        return context

    async def _forward(self, request: web.Request) -> web.Response:
        url = f"{self._behind()}/{request.match_info['rest']}"
        async with aiohttp.ClientSession() as http, http.post(url, data=await request.read()) as reply:
            return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            method, target, *_ = (await reader.readuntil(b"\r\n\r\n")).decode().split()
            self.connected[target] += 1
            if (method, target) != ("CONNECT", f"{self.HOST}:443"):
                writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                writer.close()
                return
            onward, back = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await asyncio.gather(copied(reader, back), copied(onward, writer))


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
