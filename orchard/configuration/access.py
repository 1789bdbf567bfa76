"""Who a user is: by the login name on one machine, by a key, or by the header of a sign-in proxy."""

import hashlib
import hmac
import os
import pwd
import re
import tomllib
from collections.abc import Collection, Mapping
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path

import msgspec

from orchard.schemas.access import Principal, UserRole
from orchard.schemas.addresses import check_variable
from orchard.schemas.faults import fault_sentence
from orchard.schemas.identity import check_name
from orchard.schemas.toml_text import parsed_toml

_SHA256 = re.compile(r"[0-9a-f]{64}")


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Users and how they are known (configuration section `[access]`)."""

    people: str | None = None
    """Path of a TOML file that lists users with team, role and the SHA-256 of their keys, as in
    docs/how-to/teams.md. None: everybody with access to the machine operates, under the login name."""
    key_env: str = "OPERATOR_KEY"
    """Environment variable with the key of whoever gives commands, if `people` is set."""
    team: str = ""
    """Team of the login name, without `people`; empty: the one of `[teams]` that has this name, if any."""
    user_header: str = ""
    """HTTP header in which a sign-in proxy in front of the page names the user, such as X-Auth-Request-User;
    empty: no header is read."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of that proxy: the header of a request from anywhere else is not read."""

    def __post_init__(self) -> None:
        check_variable(self.key_env, "access.key_env")
        if self.team:
            check_name(self.team, "team")
        for network in self.proxies:
            ip_network(network)
        if self.user_header and not (self.proxies and self.people):
            raise ValueError(
                "access.user_header needs access.proxies, from where it is believed, and access.people, "
                "which lists its users"
            )

    def from_proxy(self, address: str | None) -> bool:
        """Whether a request from this address may name its user by the header."""
        if not self.user_header or not address:
            return False
        given = ip_address(address.partition("%")[0])
        mapped = given.ipv4_mapped if isinstance(given, IPv6Address) else None
        return any((mapped or given) in ip_network(one) for one in self.proxies)


class Person(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user in the file of people."""

    user: str
    team: str = ""
    role: UserRole = UserRole.READ
    key_sha256: str = ""
    """SHA-256 of the user's key, in lower-case hexadecimal; empty: only the sign-in proxy knows the user."""

    def __post_init__(self) -> None:
        if not self.user or len(self.user) > 100 or not self.user.isprintable():
            raise ValueError("user must be 1 to 100 printable characters")
        if self.team:
            check_name(self.team, "team")
        if self.key_sha256 and not _SHA256.fullmatch(self.key_sha256):
            raise ValueError("key_sha256 must be 64 hexadecimal digits: the SHA-256 of the key, not the key")


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    people: list[Person] = []


class AccessError(ValueError):
    """It is not known who the user is, or the user may not do this; the text is one sentence."""


class People:
    """The users that a file lists."""

    def __init__(self, path: str, teams: Collection[str]) -> None:
        """Reads the file. Raises AccessError for one that is unusable or names a team that is not in
        `teams`."""
        try:
            tree = parsed_toml(Path(path).read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise AccessError(f"the file of people {path} cannot be read: {error}") from error
        try:
            listed = msgspec.convert(tree, _File).people
        except msgspec.ValidationError as error:
            raise AccessError(f"the file of people {path}: {fault_sentence(tree, _File, error)}") from error
        for person in listed:
            check_team(person.team, teams)
        self._by_key = {one.key_sha256: one for one in listed if one.key_sha256}
        self._by_name = {one.user: one for one in listed}
        if len(self._by_name) < len(listed):
            raise AccessError(f"the file of people {path} has a user twice: leave one entry of each")
        if len(self._by_key) < sum(bool(one.key_sha256) for one in listed):
            raise AccessError(f"the file of people {path} has a key twice: give each user a key of their own")

    def with_key(self, key: str) -> Principal | None:
        given = hashlib.sha256(key.encode()).hexdigest()
        found = [one for known, one in self._by_key.items() if hmac.compare_digest(known, given)]
        return _principal(found[0]) if found else None

    def named(self, user: str) -> Principal | None:
        """The user of this name, who must have been authenticated by others."""
        found = self._by_name.get(user)
        return None if found is None else _principal(found)


def check_team(team: str, teams: Collection[str]) -> None:
    """Raises AccessError for a team that the configuration does not have."""
    if team and team not in teams:
        raise AccessError(
            f"the team {team} is not in the configuration: add [teams.{team}] to orchard.toml, here and "
            "where the workers run"
        )


def caller(
    settings: AccessSettings, teams: Collection[str], environment: Mapping[str, str] = os.environ
) -> Principal:
    """Who runs this command: the user of the key in the environment, or without a file of people the login
    name. Raises AccessError."""
    if settings.people is None:
        check_team(settings.team, teams)
        return Principal(user=login_name(), team=own_team(settings, teams))
    key = environment.get(settings.key_env, "")
    if not key:
        raise AccessError(
            f"nobody is signed in: set {settings.key_env} to your key, whose SHA-256 {settings.people} lists"
        )
    found = People(settings.people, teams).with_key(key)
    if found is None:
        raise AccessError(
            f"the key in {settings.key_env} is not in {settings.people}: ask an operator for one"
        )
    return found


def own_team(settings: AccessSettings, teams: Collection[str]) -> str:
    """Team of the login name: the configured one, else the one that has this name."""
    user = login_name()
    return settings.team or (user if user in teams else "")


def login_name() -> str:
    """Name of the process' user, whatever the environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        return f"uid-{os.getuid()}"


def _principal(person: Person) -> Principal:
    return Principal(user=person.user, team=person.team, role=person.role)
