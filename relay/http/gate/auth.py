"""Authentication and authorisation: who calls, and whether they may.

There are three credentials: the administrator's token and API keys (`Authorization: Bearer`), and a
mailbox's session token (`X-Session-Token`, on streams also `?token=`).  Where another program is
stood in for (`Operation.compat`), the first two may be the password of Basic, with any user, for
that is what clients of that program can send.  The operator's page has page sessions instead
(`page_sessions.py`), each known by a cookie and by a secret of the page (`cookies.py`); they count
where no header names a credential.

Promises
  * Tokens are compared as hashes, the administrator's in constant time.
  * On a mailbox, no credential, a wrong one and a foreign one are one answer, after the same
    look-up: nobody learns whether an address exists.
  * A cookie alone is no credential, and neither is what the page alone holds.
  * A stream does not outlive its key by more than two keep-alives, and ends at once with its page
    session's (`Admission`).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import trio
from pydantic import TypeAdapter, ValidationError

from relay.access.bearers import MAX_TOKEN, bearer_of
from relay.chance import time
from relay.crypto import hash_token, tokens_equal
from relay.db.channels import SESSIONS
from relay.db.listen import Bell, Hub, Subscription
from relay.errors import TemporaryFailure
from relay.http.credentials import tickets
from relay.http.credentials.callers import Caller
from relay.http.credentials.cookies import Shown, shown
from relay.http.credentials.page_sessions import PageSession, Proof
from relay.http.deps import Deps
from relay.http.operations import Access, Operation
from relay.http.paths import path_of
from relay.http.problems.details import Problem, mailbox_not_found, missing_scope, unauthenticated
from relay.mailboxes.records import Mailbox
from relay.mailboxes.visibility import Credential

_OR_BASIC = ", or 'Basic' with a token as the password"
_UNKNOWN = "The token is unknown or revoked."
_BOOLEAN = TypeAdapter(bool)
_PATIENCE = 5.0  # s; a stream does not stand still longer for a database that does not answer


async def identify(deps: Deps, token: str) -> Caller | None:
    """Return the holder of a bearer token, or None."""
    bearer = await bearer_of(token, deps.keys, deps.admin_token_hash)
    if bearer is None:
        return None
    if bearer.administrator:
        return Caller(None)
    deps.known_keys.note(bearer.token_hash, bearer.key)
    return None if bearer.key is None else Caller(bearer.key)


def shows(connection: Any, token_hash: bytes) -> bool:
    """Whether a call shows the token of this hash, which is no caller's, as its bearer token."""
    token = _bearer(connection.headers) or ""
    return 0 < len(token) <= MAX_TOKEN and tokens_equal(hash_token(token), token_hash)


class Admitted(NamedTuple):
    """The caller who was let in, the mailbox that is named, the page session that was shown."""

    caller: Caller | None = None
    mailbox: Mailbox | None = None
    session: PageSession | None = None


class Authorisation:
    """Finds out who makes one call and whether they may: when it comes, and again later on.

    `connection` is Quart's request or websocket, `address` the mailbox that its path names.
    """

    def __init__(
        self, deps: Deps, operation: Operation, connection: Any, address: str | None
    ) -> None:
        self._deps = deps
        self._operation = operation
        self._connection = connection
        self._address = address or ""
        self._came_at = time()  # a ticket that was in time stays so for a long answer
        self._believes = operation.sees_end
        self.believed = False
        """Whether the mailbox is as this relay knew it, and may be over."""

    def payer(self) -> Caller | None:
        """Return the caller whom to charge for the call; None: charge the client's address.

        It asks nobody: a key and a page session are believed from the first time that they were
        found good until they are found revoked.  What the caller may is `authorise`'s to say,
        which looks them up.
        """
        deps, operation, headers = self._deps, self._operation, self._connection.headers
        if operation.access is Access.OPEN:
            return None
        if "Authorization" not in headers:
            if operation.access in {Access.MAILBOX, Access.OWN} and (
                _named(headers) or (operation.token_in_query and "token" in self._connection.args)
            ):
                return None  # the page's session does not count then, nor is it looked up
            known = deps.sessions.known(self._shown(), self._proof())
            return None if known is None else Caller(known[1])
        token = _token(operation, headers)
        if not token or len(token) > MAX_TOKEN:
            return None
        token_hash = hash_token(token)
        if tokens_equal(token_hash, deps.admin_token_hash):
            return Caller(None)
        key = deps.known_keys.key(token_hash)
        return None if key is None else Caller(key)

    async def authorise(self) -> Admitted:
        """Return who calls and the mailbox named, or raise the `Problem` that refuses the call.

        A mailbox that this relay knows is looked up from the second time on, where the operation
        sees its end.
        """
        operation = self._operation
        if operation.access is Access.OPEN:
            return Admitted()
        if operation.access is Access.MAILBOX:
            return await self._on_mailbox()
        if operation.access is Access.OWN:
            return await self._on_own()
        caller, session = await self._caller()
        if caller is None:
            if operation.access is Access.SCOPE:
                also = _OR_BASIC if operation.compat else ""
                raise unauthenticated(
                    f"This call needs an Authorization header with a bearer token{also}."
                )
            return Admitted()
        if operation.scope is not None and not caller.allows(operation.scope):
            raise missing_scope(operation.scope)
        return Admitted(caller, None, session)

    async def _caller(self) -> tuple[Caller | None, PageSession | None]:
        authorization = self._connection.headers.get("Authorization")
        if authorization is None:
            # A session that is no more is no credential; what needs one says 401 by itself.
            operator, _ = await self._of_page()
            return operator if operator is not None else (None, None)
        token = _token(self._operation, self._connection.headers)
        if not token:
            also = _OR_BASIC if self._operation.compat else ""
            raise unauthenticated(f"The Authorization header must be 'Bearer' and a token{also}.")
        caller = await identify(self._deps, token)
        if caller is None:
            raise unauthenticated(_UNKNOWN)
        return caller, None

    async def _on_mailbox(self) -> Admitted:
        deps, operation, headers = self._deps, self._operation, self._connection.headers
        caller, token_hash = await _of_mailbox(deps, operation, headers, self._connection.args)
        session: PageSession | None = None
        if caller is None and token_hash is None and not _named(headers):
            operator, own = await self._of_page()
            if own is not None:
                credential = Credential(own.holder.token_hash)
                mailbox = await self._find(credential)
                if mailbox is not None:
                    return Admitted(None, mailbox, own)
            if operator is not None:
                caller, session = operator
        scope = operation.scope
        may = caller is not None and (scope is None or caller.allows(scope))
        known = caller.credential if caller is not None else Credential()
        credential = Credential(token_hash)
        if may:
            credential = Credential(token_hash, known.owner_id, known.administrator)
        mailbox = await self._find(credential)
        if mailbox is None:
            if self._connection.scope.get("method") == "DELETE":
                await deps.store.confirm_gone(self._address, credential)
            # An owner learns that it is the scope; to all others the mailbox does not exist.
            if caller is not None and not may and scope is not None:
                mailbox = await deps.store.find(self._address, known)
                if mailbox is not None:
                    raise missing_scope(scope)
            raise mailbox_not_found()
        return Admitted(caller, mailbox, session)

    async def _on_own(self) -> Admitted:
        """Whoever owns mailboxes; a session token has the one that it was made with."""
        deps, operation, headers = self._deps, self._operation, self._connection.headers
        caller, token_hash = await _of_mailbox(deps, operation, headers, self._connection.args)
        session: PageSession | None = None
        if caller is None and token_hash is None and not _named(headers):
            operator, _ = await self._of_page()
            if operator is not None:
                caller, session = operator
        if caller is None:
            mailbox = None
            if token_hash is not None and "Authorization" not in headers:
                mailbox = await deps.store.find_by_session(token_hash)
            if mailbox is None:
                if _bearer(headers):
                    raise unauthenticated(_UNKNOWN)
                raise unauthenticated(
                    "This call needs a bearer token, or the session token of a mailbox that lives."
                )
            return Admitted(None, mailbox)
        if operation.scope is not None and not caller.allows(operation.scope):
            raise missing_scope(operation.scope)
        return Admitted(caller, None, session)

    async def _find(self, credential: Credential) -> Mailbox | None:
        store = self._deps.store
        believes, self._believes = self._believes, False
        known = store.known(self._address, credential) if believes else None
        self.believed = known is not None
        if known is not None:
            return known
        deleted = self._operation.purges and _says_yes(self._connection.args.get("purge", ""))
        return await store.find(self._address, credential, deleted=deleted)

    async def _of_page(self) -> tuple[tuple[Caller, PageSession] | None, PageSession | None]:
        """Return the operator with their page session, and the mailbox's page session."""
        operator: tuple[Caller, PageSession] | None = None
        own: PageSession | None = None
        for session, key in await self._deps.sessions.find(self._shown(), self._proof()):
            if session.holder.kind == "mailbox":
                own = session
            else:
                operator = Caller(key), session
        return operator, own

    def _shown(self) -> Shown:
        return shown(self._connection, self._deps.urls, ticket=self._operation.ticket > 0)

    def _proof(self) -> Proof:
        given, path = self._shown(), path_of(self._connection)

        def proof(session: PageSession) -> bool:
            if any(tokens_equal(key, session.page_key_hash) for key in given.keys):
                return True
            return given.ticket is not None and tickets.opens(
                given.ticket, self._deps.keyring.signing, session.id, session.page_key_hash, path,
                now=self._came_at, lasts=self._operation.ticket,
            )  # fmt: skip

        return proof


class Admission:
    """Checks again, while a call is answered for long, whether it would still be let in.

    `again` is `Authorisation.authorise` of the same call, so that the two cannot differ.  It runs
    once `every` seconds have passed since it last did, and at once when the call's page session may
    be over.  It charges nobody, and is left out where there is neither caller nor session: a
    mailbox's own token lasts as long as the mailbox, whose end its streams see by themselves.
    """

    def __init__(
        self,
        again: Callable[[], Awaitable[Admitted]],
        admitted: Admitted,
        every: float,
        hub: Hub,
    ) -> None:
        self._again = again
        self._session = admitted.session
        charged = admitted.caller is not None or admitted.session is not None
        self._every = every if charged else math.inf
        self._due = trio.current_time() + self._every
        self._hub = hub
        self._news: Subscription | None = None
        self._refusal: Problem | None = None

    async def refusal(self) -> Problem | None:
        """Return what the call would be refused with now, or None; an outage refuses nobody."""
        if self._news is not None and self._news.woken:
            await self._news.wait()
            self._due = -math.inf
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

    @contextmanager
    def watched(self, bell: Bell) -> Iterator[None]:
        """Watch the call's page session while in the block; `bell` rings when it may be over."""
        if self._session is None:
            yield
            return
        with self._hub.subscribe(SESSIONS, str(self._session.id), bell=bell) as news:
            self._news = news
            self._due = -math.inf  # it may have ended between its look-up and here
            try:
                yield
            finally:
                self._news = None


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


def _says_yes(text: str) -> bool:
    try:
        return _BOOLEAN.validate_python(text)
    except ValidationError:
        return False  # said to whoever passes


def _bearer(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = (headers.get("Authorization") or "").strip().partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def _token(operation: Operation, headers: Mapping[str, str]) -> str | None:
    """The token that the Authorization header has, as far as the call takes its scheme."""
    if not operation.compat:
        return _bearer(headers)
    return _bearer(headers) or _password(headers)


def _password(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = (headers.get("Authorization") or "").strip().partition(" ")
    if scheme.lower() != "basic" or len(value) > 4 * MAX_TOKEN:
        return None
    try:
        said = base64.b64decode(value, validate=True).decode()
    except ValueError:
        return None
    return said.partition(":")[2]


def _named(headers: Mapping[str, str]) -> bool:
    # A wrong credential is not mended by a right cookie: who sends both is told of the wrong one.
    return "Authorization" in headers or "X-Session-Token" in headers
