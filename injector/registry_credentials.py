"""Reads the credentials that `docker login` stored for a registry, to send them with a pull."""

import base64
import json
import os
from pathlib import Path

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.local.references import DOCKER_HUB, parse

_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", DOCKER_HUB)


class CredentialsError(Exception):
    """The file cannot be used; the sentence never contains a secret."""


def stored_credentials(reference: str, config: Path | None = None) -> dict[str, str] | None:
    """Return `username` and `password` of the reference's registry, or None if none are stored.

    `config` is Docker's config.json; None: that of $DOCKER_CONFIG, or ~/.docker/config.json. Raises
    CredentialsError for an invalid file, and if a credential helper has them.
    """
    path = config or Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        registry = parse(reference).registry
        document = json.loads(path.read_text())
        entries, helpers = document.get("auths") or {}, document.get("credHelpers") or {}
        keys = _HUB_KEYS if registry == DOCKER_HUB else (registry, f"https://{registry}")
        entry = next((entries[key] for key in keys if key in entries), None)
        if entry and entry.get("auth"):
            user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            return {"username": user, "password": password}
        if entry and entry.get("username"):
            return {"username": entry["username"], "password": entry.get("password") or ""}
    except FileNotFoundError:
        if config is None:
            return None
        raise CredentialsError(f"there is no {path}: give Docker's config.json") from None
    except RequestInvalid as error:
        raise CredentialsError(error.detail) from error
    except (ValueError, AttributeError, TypeError, OSError) as error:
        raise CredentialsError(f"{path} is not a config.json as `docker login` writes it") from error
    if entry is not None or registry in helpers:
        raise CredentialsError(
            f"{path} leaves the password for {registry} to another program: use --user and --password-stdin"
        )
    return None
