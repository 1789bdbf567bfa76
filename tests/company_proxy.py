"""A proxy of a company that reads what goes through it, with a certificate authority of its own."""

import asyncio
import base64
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

_HOP_BY_HOP = ("host", "connection", "content-length", "transfer-encoding")


class CompanyProxy:
    """A company's proxy: it connects to one host alone, and reads what goes there with a certificate of the
    company's authority. Nobody knows that host's address."""

    def __init__(self, host: str, behind: Callable[[], str], home: Path) -> None:
        """`behind` gives a URL of what answers for `host`; files are written to `home`."""
        self.connected: Counter[str] = Counter()
        self.port = 0
        self.reading = 0
        """Port at which it answers for the host itself."""
        self.account: tuple[str, str] | None = None
        """User and password that it asks for."""
        self.authority = home / "bundle.crt"
        self._host = host
        self._behind = behind
        self._home = home

    @property
    def url(self) -> str:
        account = "" if self.account is None else "{}:{}@".format(*self.account)
        return f"http://{account}127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{rest:.*}", self._forward)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._certified()).start()
        self.reading = runner.addresses[0][1]
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
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
        names.write_text(f"subjectAltName=DNS:{self._host}")
        run(*new, "-subj", f"/CN={self._host}", "-keyout", str(host), "-out", str(wanted))
        sign = ("openssl", "x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", str(names))
        certificate = self._home / "host.crt"
        issuer = ("-CA", str(self.authority), "-CAkey", str(key))
        run(*sign, *issuer, "-in", str(wanted), "-out", str(certificate))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, host)
        return context

    async def _forward(self, request: web.Request) -> web.Response:
        url = URL(self._behind()).origin().join(request.rel_url)
        given, body = _passed(request.headers), await request.read()
        async with (
            aiohttp.ClientSession(auto_decompress=False) as http,
            http.request(request.method, url, data=body, headers=given, allow_redirects=False) as reply,
        ):
            return web.Response(status=reply.status, body=await reply.read(), headers=_passed(reply.headers))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            asked = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, *_ = asked.split()
            self.connected[target] += 1
            if refusal := self._refusal(method, target, asked):
                writer.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\n\r\n".encode())
                writer.close()
                return
            onward, back = await asyncio.open_connection("127.0.0.1", self.reading)
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await asyncio.gather(copied(reader, back), copied(onward, writer))

    def _refusal(self, method: str, target: str, asked: str) -> str:
        """Status and reason, or nothing."""
        if self.account is not None:
            basic = base64.b64encode(":".join(self.account).encode()).decode()
            if f"proxy-authorization: basic {basic}".lower() not in asked.lower():
                return "407 Proxy Authentication Required"
        return "" if (method, target) == ("CONNECT", f"{self._host}:443") else "403 Forbidden"


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
