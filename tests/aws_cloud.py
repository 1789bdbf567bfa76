"""AWS as a Pod sees it, for a command in a network of its own: `unshare -n -m python -m tests.aws_cloud ...`.

`sts` and `s3` of one region answer at their own names, over TLS: the one exchanges any token for a key, the
other is moto's service, without that key's secret being looked at. Prints at last, as JSON, what was seen.
"""

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

from aiohttp import ClientSession, web

from tests.s3_server import s3_service

ADDRESS = "10.9.9.1"
BUCKET, REGION = "orchard", "us-east-1"
KEY, TOKEN = "ASIAEXCHANGED", "session-of-the-role"
NAMES = [f"{name}.{REGION}.amazonaws.com" for name in ("sts", "s3", f"{BUCKET}.s3")]
STATIC = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL")
_ANSWER = f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{KEY}</AccessKeyId>
<SecretAccessKey>secret</SecretAccessKey><SessionToken>{TOKEN}</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""
_HOP = {"transfer-encoding", "content-length", "connection", "expect"}


class Cloud:
    """Both services, and what they were asked with."""

    def __init__(self, s3: str, http: ClientSession) -> None:
        self._s3, self._http = s3, http
        self.exchanged: list[str] = []
        """Tokens that were handed in."""
        self.keys: set[tuple[str, str]] = set()
        """Key and session token of each request to `s3`."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Of either."""
        if request.host.startswith("sts."):
            asked = {**request.query, **await request.post()}
            self.exchanged.append(str(asked["WebIdentityToken"]))
            return web.Response(text=_ANSWER, content_type="text/xml")
        signed = re.search("Credential=([^/]+)", request.headers.get("Authorization", ""))
        self.keys.add((signed[1] if signed else "", request.headers.get("x-amz-security-token", "")))
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        async with self._http.request(
            request.method,
            self._s3 + request.raw_path,
            data=await request.read(),
            headers=headers,
            skip_auto_headers=["Content-Type"],
        ) as reply:
            kept = {name: value for name, value in reply.headers.items() if name.lower() not in _HOP}
            if request.method == "HEAD" and "Content-Length" in reply.headers:
                kept["Content-Length"] = reply.headers["Content-Length"]
            return web.Response(status=reply.status, body=await reply.read(), headers=kept)


def _network(place: Path) -> ssl.SSLContext:
    """A network that has nothing but AWS, whose certificates are believed."""
    (place / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {' '.join(NAMES)}\n")
    (place / "names").write_text(f"subjectAltName={','.join(f'DNS:{name}' for name in NAMES)}")
    key = "openssl req -newkey rsa:2048 -nodes"
    for line in (
        "ip link set lo up",
        "ip link add c0 type veth peer name c1",
        f"ip addr add {ADDRESS}/24 dev c0",
        "ip link set c0 up",
        "ip link set c1 up",
        f"{key} -x509 -keyout ca.key -out ca.crt -subj /CN=test -days 2",
        f"{key} -keyout aws.key -out aws.csr -subj /CN=aws",
        "openssl x509 -req -in aws.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out aws.crt -days 2 "
        "-extfile names",
        "mount --bind hosts /etc/hosts",
        "mount -t tmpfs tmpfs /etc/ssl/certs",
        "cp ca.crt /etc/ssl/certs/ca-certificates.crt",
    ):
        subprocess.run(line.split(), cwd=place, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(place / "aws.crt", place / "aws.key")
    return context


async def run(command: list[str], seconds: float, place: Path) -> dict[str, object]:
    """The command, as a Pod whose account has a role."""
    context = _network(place)
    (place / "token").write_text("token-of-the-account")
    role = {"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/orchard", "AWS_REGION": REGION}
    role |= {"AWS_WEB_IDENTITY_TOKEN_FILE": str(place / "token"), "AWS_EC2_METADATA_DISABLED": "true"}
    environment = {name: value for name, value in os.environ.items() if name not in STATIC} | role
    with s3_service(BUCKET) as url:
        async with ClientSession(auto_decompress=False) as http:
            cloud = Cloud(url, http)
            app = web.Application(client_max_size=2**28)
            app.router.add_route("*", "/{path:.*}", cloud.answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            await web.TCPSite(runner, ADDRESS, 443, ssl_context=context).start()
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=sys.stderr)
            try:
                async with asyncio.timeout(seconds):
                    status = await process.wait()
            except TimeoutError:
                process.kill()
                status = await process.wait()
            await runner.cleanup()
    return {"status": status, "exchanged": cloud.exchanged, "keys": sorted(cloud.keys)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        seen = asyncio.run(run(sys.argv[2:], float(sys.argv[1]), Path(directory)))
    sys.stdout.write(json.dumps(seen) + "\n")
