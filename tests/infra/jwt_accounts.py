"""A NATS server in operator mode, as providers run it: an account and users by signed tokens (JWT)."""

import base64
import json
import re
import secrets
import time
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]

UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
ACCOUNT_LIMITS = {
    **UNLIMITED,
    **dict.fromkeys(("imports", "exports", "conn", "leaf", "mem_storage", "disk_storage"), -1),
    **dict.fromkeys(("streams", "consumer"), -1),
    "wildcards": True,
}


class Signer:
    """A pair of keys that may sign tokens."""

    def __init__(self, kind: int) -> None:
        self.seed = bytes(nkeys.encode_seed(secrets.token_bytes(32), kind))
        self._keys = nkeys.from_seed(bytearray(self.seed))
        self.public = self._keys.public_key.decode()

    def token(self, subject: str, name: str, claims: dict[str, Any]) -> str:
        """A signed token for the `subject`'s public key."""
        body = {
            "jti": secrets.token_hex(16),
            "iat": int(time.time()),
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {**claims, "version": 2},
        }
        text = ".".join(_base64(json.dumps(part).encode()) for part in (HEADER, body))
        return f"{text}.{_base64(self._keys.sign(text.encode()))}"


HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def operator_mode(accounts: str, home: Path) -> str:
    """Writes `home`/ROLE.creds for each role of the chart's `accounts.conf`, with its rights to publish;
    returns the servers' part of the configuration."""
    operator, system, account = Signer(nkeys.PREFIX_BYTE_OPERATOR), *_accounts(2)
    limits = {"type": "account", "limits": ACCOUNT_LIMITS, "default_permissions": {"pub": {}, "sub": {}}}
    preload = {
        one.public: operator.token(one.public, name, limits if one is account else {"type": "account"})
        for name, one in (("ORCHARD", account), ("SYS", system))
    }
    roles = accounts.partition("READERS {")[0]
    for role, allowed in re.findall(r"user: (\w+),.*?publish: \[(.*?)\]", roles, re.DOTALL):
        user = Signer(nkeys.PREFIX_BYTE_USER)
        rights = {"pub": {"allow": re.findall(r'"([^"]+)"', allowed)}, "sub": {"allow": ["_INBOX.>"]}}
        token = account.token(user.public, role, {**rights, **UNLIMITED, "type": "user"})
        (home / f"{role}.creds").write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )
    known = "\n".join(f'  {public}: "{token}"' for public, token in preload.items())
    claims = {"type": "operator", "system_account": system.public}
    return (
        f'operator: "{operator.token(operator.public, "provider", claims)}"\n'
        f"system_account: {system.public}\nresolver: MEMORY\nresolver_preload: {{\n{known}\n}}\n"
    )


def _accounts(count: int) -> list[Signer]:
    return [Signer(nkeys.PREFIX_BYTE_ACCOUNT) for _ in range(count)]
