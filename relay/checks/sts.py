"""MTA-STS as it is published (RFC 8461): the record that says there is a policy, and the policy.

Promises
- What is read is bounded: `MAX_POLICY` bytes, of which `MOST_HOSTS` names of hosts.
- Fields that nobody knows are ignored, and so is a field but `mx` that is there once more (3.2).

Fails with `Unusable`, whose text says as a clause what is wrong.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from relay.checks.details import quoted
from relay.checks.tags import unusable
from relay.dns.questions import is_name

MAX_POLICY = 65_536
"""Bytes of a policy: what RFC 8461, 3.3, advises."""
MAX_AGE = 31_557_600
"""Seconds for which a policy may be kept at most: a year."""
MOST_HOSTS = 100
"""Hosts that a policy names at most: senders keep them, and the largest provider has five."""

_RECORD = re.compile(r"v=STSv1\s*(?:;|\Z)")
_ID = re.compile(r"[A-Za-z0-9]{1,32}")
_HOST = re.compile(r"(?:\*\.)?(?P<name>[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?)")


class Mode(StrEnum):
    """What a domain asks of those who bring it mail."""

    ENFORCE = "enforce"
    """Mail goes by TLS that is verified, to hosts that are named, or not at all."""
    TESTING = "testing"
    """It goes as ever; where that could not be, is reported."""
    NONE = "none"
    """The domain has no policy any more."""


class StsPolicy(NamedTuple):
    """A policy."""

    mode: Mode
    hosts: tuple[str, ...]
    """Names in small letters; `*.` at the front stands for one label."""
    max_age: int
    """Seconds for which it holds."""

    def allows(self, host: str) -> bool:
        """Whether a mail exchanger (A-labels in small letters) is among its hosts (4.1)."""
        above = f"*.{host.partition('.')[2]}"
        return any(one in {host, above} for one in self.hosts)


def records(texts: Iterable[str]) -> list[str]:
    """Those of the TXT records at `_mta-sts` that are about it (3.1)."""
    return [text for text in texts if _RECORD.match(text)]


def id_of(record: str) -> str | None:
    """The id of a policy, in one of `records`: another one says that the policy is another."""
    for field in record.split(";"):
        name, _, value = field.partition("=")
        if name.strip() == "id":
            return value.strip() if _ID.fullmatch(value.strip()) else None
    return None


def policy_url(domain: str) -> str:
    """Where the policy of a domain is served (3.3)."""
    return f"https://mta-sts.{domain}/.well-known/mta-sts.txt"


def refusal(status: int, media_type: str) -> str | None:
    """Why what a server of policies answers is none; None: it is one, as far as its head says."""
    if status != 200:
        return f"its server answers {status}, not 200"
    kind = media_type.partition(";")[0].strip().lower()
    return None if kind == "text/plain" else f"its type is {quoted(kind)}, not text/plain"


def parse(body: bytes) -> StsPolicy:
    """Read a policy (3.2).  Raises `Unusable`."""
    if len(body) > MAX_POLICY:
        unusable(f"it has over {MAX_POLICY} bytes")
    values: dict[str, list[str]] = {}
    for line in body.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), []).append(value.strip())
    version, mode, age = (values.get(name, [""])[0] for name in ("version", "mode", "max_age"))
    if version != "STSv1":
        unusable("its version is not STSv1")
    if mode not in {one.value for one in Mode}:
        unusable(f"its mode {quoted(mode)} is none of enforce, testing and none")
    if not (age.isascii() and age.isdecimal() and len(age) <= 10 and int(age) <= MAX_AGE):
        unusable("its max_age is no number of seconds up to a year")
    hosts = dict.fromkeys(host.lower().removesuffix(".") for host in values.get("mx", ()))
    if mode != Mode.NONE and not hosts:
        unusable("it names no mx")
    if len(hosts) > MOST_HOSTS:
        unusable(f"it names over {MOST_HOSTS} mx")
    for host in hosts:
        named = _HOST.fullmatch(host)
        if named is None or not is_name(named["name"]):
            unusable(f"its mx {quoted(host)} is no name of a host")
    return StsPolicy(Mode(mode), tuple(hosts), int(age))
