"""Who calls, and whether they may.

Three credentials: the administrator's token and API keys (`Authorization: Bearer`), and a
mailbox's session token (`X-Session-Token`, on streams also `?token=`).  The operator's page has
cookies instead of either (`cookies.py`); they count where no header names a credential.

Promises
  * Tokens are compared as hashes, the administrator's in constant time.
  * On a mailbox, no credential, a wrong one and a foreign one are one answer, after the same
    look-up: nobody learns whether an address exists.
  * Host must name this relay and Origin must be its own page, on WebSockets too; so no other
    site's script reaches it, not even through a name made to resolve to this machine.
  * A stream does not outlive its key, or its cookie, by more than two keep-alives (`Admission`).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import trio

from relay.crypto import hash_token, tokens_equal
from relay.errors import TemporaryFailure
from relay.http.cookies import MAILBOX, SESSION, cookie_of, hash_of
from relay.http.deps import Deps
from relay.http.operations import Access, Operation
from relay.http.problems import Problem, mailbox_not_found, missing_scope, unauthenticated
from relay.mailboxes.keys import ApiKey
from relay.mailboxes.store import ADMINISTRATOR_ID, Credential, Mailbox
from relay.settings import is_loopback

MAX_TOKEN = 512
"""Characters beyond which a credential is not even looked up."""

_PATIENCE = 5.0  # s; a stream does not stand still longer for a database that does not answer


@dataclass(frozen=True)
class Caller:
    """A credential that is valid: the administrator (no key), or the holder of a key."""

    key: ApiKey | None

    @property
    def owner_id(self) -> UUID:
        """The owner of what this caller makes."""
        return ADMINISTRATOR_ID if self.key is None else self.key.id

    @property
    def plan(self) -> str:
        """The plan of what this caller makes."""
        return "enterprise" if self.key is None else self.key.plan

    def allows(self, scope: str) -> bool:
        """Whether the caller may do what needs `scope`."""
        return self.key is None or self.key.allows(scope)

    @property
    def credential(self) -> Credential:
        """The caller, as the store asks for it."""
        if self.key is None:
            return Credential(administrator=True)
        return Credential(owner_id=self.key.id)


async def identify(deps: Deps, token: str) -> Caller | None:
    """Return the holder of a bearer token, or None."""
    if not token or len(token) > MAX_TOKEN:
        return None
    return await _holder(deps, hash_token(token))


async def _holder(deps: Deps, token_hash: bytes | None) -> Caller | None:
    if token_hash is None:
        return None
    if tokens_equal(token_hash, deps.admin_token_hash):
        return Caller(None)
    key = await deps.keys.authenticate(token_hash)
    deps.seen.note(token_hash, key)
    return None if key is None else Caller(key)


def payer(deps: Deps, operation: Operation, connection: Any) -> Caller | None:
    """Return whom the call is charged to before any look-up: None is the address.

    A key counts from the first time on that it was found good, and until it is found revoked.
    It says nothing of what the caller may: that is `authorise`'s, which looks the key up.
    """
    if operation.access is Access.OPEN:
        return None
    headers = connection.headers
    if "Authorization" in headers:
        token = _bearer(headers)
        token_hash = hash_token(token) if token and len(token) <= MAX_TOKEN else None
    elif operation.access is Access.MAILBOX and (
        _named(headers) or (operation.token_in_query and "token" in connection.args)
    ):
        return None  # it reads no cookie then, so it would not notice a key that was revoked
    else:
        token_hash = hash_of(SESSION, deps.keyring.signing, connection)
    if token_hash is None:
        return None
    if tokens_equal(token_hash, deps.admin_token_hash):
        return Caller(None)
    key = deps.seen.key(token_hash)
    return None if key is None else Caller(key)


async def authorise(
    deps: Deps, operation: Operation, connection: Any, address: str | None
) -> tuple[Caller | None, Mailbox | None]:
    """Return who calls and the mailbox named, or raise the `Problem` that refuses the call.

    `connection` is Quart's request or websocket.
    """
    if operation.access is Access.OPEN:
        return None, None
    if operation.access is Access.MAILBOX:
        return await _on_mailbox(deps, operation, connection, address or "")
    caller = await _caller(deps, connection)
    if caller is None:
        if operation.access is Access.SCOPE:
            raise unauthenticated("This call needs an Authorization header with a bearer token.")
        return None, None
    if operation.scope is not None and not caller.allows(operation.scope):
        raise missing_scope(operation.scope)
    return caller, None


class Admission:
    """Whether a call that was let in still would be, for those that answer for long.

    `again` is `authorise` for the same call, so that the two cannot differ.  It runs once `every`
    seconds have passed since it last did, charges nobody, and is left out where there is no caller:
    a mailbox's own token lasts as long as the mailbox, whose end its streams see by themselves.
    """

    def __init__(
        self,
        again: Callable[[], Awaitable[tuple[Caller | None, Mailbox | None]]],
        caller: Caller | None,
        every: float,
    ) -> None:
        self._again = again
        self._every = math.inf if caller is None else every
        self._due = trio.current_time() + self._every
        self._refusal: Problem | None = None

    async def refusal(self) -> Problem | None:
        """Return what the call would be refused with by now, or None; an outage refuses nobody."""
        if self._refusal is None and trio.current_time() >= self._due:
            try:
                with trio.move_on_after(_PATIENCE):
                    await self._again()
            except Problem as problem:
                self._refusal = problem
            except TemporaryFailure:
                pass  # what was known last holds until the next look
            self._due = trio.current_time() + self._every
        return self._refusal


async def _caller(deps: Deps, connection: Any) -> Caller | None:
    authorization = connection.headers.get("Authorization")
    if authorization is None:
        # A cookie whose token is no more is no credential; what needs one says 401 by itself.
        return await _holder(deps, cookie_of(SESSION, deps.keyring.signing, connection))
    scheme, _, token = authorization.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise unauthenticated("The Authorization header must be 'Bearer' and a token.")
    caller = await identify(deps, token)
    if caller is None:
        raise unauthenticated("The token is unknown or revoked.")
    return caller


async def _on_mailbox(
    deps: Deps, operation: Operation, connection: Any, address: str
) -> tuple[Caller | None, Mailbox | None]:
    caller, token_hash = await _of_mailbox(deps, operation, connection.headers, connection.args)
    if caller is None and token_hash is None and not _named(connection.headers):
        signing = deps.keyring.signing
        token_hash = cookie_of(MAILBOX, signing, connection)
        caller = await _holder(deps, cookie_of(SESSION, signing, connection))
    scope = operation.scope
    may = caller is not None and (scope is None or caller.allows(scope))
    known = caller.credential if caller is not None else Credential()
    mailbox = await deps.store.find(
        address,
        Credential(token_hash, known.owner_id, known.administrator)
        if may
        else Credential(token_hash),
    )
    if mailbox is None:
        # An owner learns that it is the scope; to all others the mailbox does not exist.
        if caller is not None and not may and scope is not None:
            mailbox = await deps.store.find(address, known)
            if mailbox is not None:
                raise missing_scope(scope)
        raise mailbox_not_found()
    return caller, mailbox


async def _of_mailbox(
    deps: Deps, operation: Operation, headers: Mapping[str, str], arguments: Mapping[str, str]
) -> tuple[Caller | None, bytes | None]:
    session = headers.get("X-Session-Token")
    bearer = _bearer(headers)
    if operation.token_in_query and session is None and bearer is None:
        session = bearer = arguments.get("token")
    caller = await identify(deps, bearer) if bearer else None
    known = session is not None and 0 < len(session) <= MAX_TOKEN
    return caller, hash_token(session or "") if known else None


def _bearer(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = (headers.get("Authorization") or "").strip().partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def _named(headers: Mapping[str, str]) -> bool:
    # A wrong credential is not mended by a right cookie: who sends both is told of the wrong one.
    return "Authorization" in headers or "X-Session-Token" in headers


class Hosts:
    """Which Host and Origin are this relay's own."""

    def __init__(self, public_url: str) -> None:
        parts = urlsplit(public_url)
        self._public_host = parts.hostname
        self._public_origin = (
            (parts.scheme, parts.hostname, parts.port or _port_of(parts.scheme))
            if parts.hostname
            else None
        )

    def check(self, host: str | None, origin: str | None, server: str | None, tls: bool) -> None:
        """Raise the 403 of a foreign `Host` or `Origin`.

        `server` is the address that the connection arrived at, which may be named too.
        """
        name, port = _split(host)
        if name is None or not self._names_us(name, server):
            raise Problem(403, "foreign-host", "The Host header does not name this relay.")
        if origin is None:
            return
        try:
            parts = urlsplit(origin)
            theirs = (parts.scheme, parts.hostname, parts.port or _port_of(parts.scheme))
        except ValueError:
            theirs = ("", None, None)
        scheme, their_host, their_port = theirs
        if theirs == self._public_origin:
            return
        if (
            scheme in {"http", "https"}
            and their_host is not None
            and self._names_us(their_host, server)
            and their_port == (port or _port_of("https" if tls else "http"))
        ):
            return
        raise Problem(403, "foreign-origin", "Pages of other origins may not call this relay.")

    def _names_us(self, name: str, server: str | None) -> bool:
        if is_loopback(name) or name == self._public_host:
            return True
        try:  # addresses are compared as addresses: ::1 has several spellings
            return server is not None and ipaddress.ip_address(name) == ipaddress.ip_address(
                server.partition("%")[0]
            )
        except ValueError:
            return False


def _split(host: str | None) -> tuple[str | None, int | None]:
    if not host or any(c in host for c in "/?#@\\, \t"):
        return None, None
    try:
        parts = urlsplit(f"//{host}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None, None
    return name, port


def _port_of(scheme: str) -> int | None:
    return {"http": 80, "https": 443, "ws": 80, "wss": 443}.get(scheme)
