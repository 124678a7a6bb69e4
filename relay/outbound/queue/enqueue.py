"""Putting messages into the outbound queue.

Promises
- One statement stores everything of a call, or nothing: messages, what is due, and the idempotency
  key.  `enqueue` returns after the commit, or belongs to its caller's transaction.
- The same idempotency key of the same owner gives the same ids for 24 hours, also to two callers at
  once (the second waits for the first), and is refused for another body.
- A call with ids of its own may be repeated after a lost answer: what is stored stays as it is.
- A recipient on the suppression list refuses the whole call; one who unsubscribed from the owner's
  bulk mail refuses a call of bulk.  Not one that is asked again with its key.

Crash safety: what a kill leaves

    killed                            the queue                 who queued
    --------------------------------  ------------------------  -----------------------------------
    before the commit                 nothing of the call       heard nothing, and calls again
    after it, before the answer       all of it, and its key    heard nothing; calls again: with a
                                                                key, or ids of its own, the same
                                                                messages, else second copies
    after it, before a claimer heard  the same                  has its answer; the claimers' sweep
                                                                finds it

    In its caller's transaction it is that commit's.  A key without its messages cannot be, nor
    messages that are not due (`store.py`).

Fails with `Invalid`, `Suppressed` and `KeyConflict` (permanent, nothing stored) and with
`DatabaseUnavailable` (then it is unknown whether it was stored, or, of a repeated call, whether it
is there to stay).

Why nothing is announced in the statement: NOTIFY takes a lock at commit that all writers share
(sixteen writers fell to 0.34 of their speed).  The caller tells its own claimer at once, and
`announce` tells the other nodes afterwards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from relay.access.owners import ADMINISTRATOR_ID
from relay.addresses import a_labels
from relay.db.channels import OUTBOUND
from relay.db.connection import Connection
from relay.db.pool import Pool
from relay.errors import Bug, Invalid, PermanentFailure
from relay.ids import new_ids
from relay.outbound.composing.message import Message
from relay.outbound.queue.lanes import BULK, PRIORITIES, DueLane, lane_of
from relay.smtp.dsn import NO_PARAMETERS, NOTHING_SAID

FLUSH = "flush"
"""Announced on `OUTBOUND` by an operator: what was deferred is due, and no pause holds it back."""
HIGH = "high"
"""Some of what is due has high priority."""

KEY_LIFETIME = 24 * 3600.0
"""Seconds for which an idempotency key is remembered."""

_MAX_KEY = 255  # bytes
# What a call may take on top of the pool's own deadline: a slow network, and a busy server.
_BYTES_A_SECOND, _LETTERS_A_SECOND = 256 * 1024, 100


class Suppressed(PermanentFailure):
    """Recipients are on the suppression list, so nothing was queued (422)."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__("a recipient is on the suppression list")
        self.addresses = addresses


class KeyConflict(PermanentFailure):
    """The idempotency key was used for another body within 24 hours (409)."""


class Queued(NamedTuple):
    """One queued message: what `enqueue` made of one recipient."""

    id: UUID
    recipient: str
    lane: int
    priority: int
    domain: str
    owner: UUID


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What `enqueue` did.  `replayed`: the idempotency key's answer of an earlier call.

    `due_at` is the earliest instant at which any of it is due, None when replayed.
    """

    messages: list[Queued]
    replayed: bool = False
    due_at: datetime | None = None

    @property
    def due_lanes(self) -> set[DueLane]:
        """What the claimer has to be told: where something is due now; nothing when replayed."""
        if self.due_at is None:
            return set()
        return {
            DueLane(each.lane, each.priority, self.due_at, each.domain, each.owner)
            for each in self.messages
        }


def body_hash(body: Any) -> bytes:
    """Return the digest by which an idempotency key recognises its body (32 bytes)."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).digest()


# Data-modifying parts run whether or not anything reads them; each reads `go`, which is empty when
# the key has been used or a recipient is suppressed, and then nothing is written but the key, which
# is why `key` comes after the suppressions.  ON CONFLICT (id): the same call again after a lost
# answer changes nothing.
def _statement(*, submitted: bool) -> str:
    """What queues; `submitted`: with what is known of submitted mail alone, and of reports."""
    of_contents = ", ret, envid, require_tls, route_as" if submitted else ""
    of_letters = ", notify, orcpt" if submitted else ""
    contents = """
        %(c_ret)s::text[], %(c_envid)s::text[], %(c_require_tls)s::boolean[],
        %(c_route_as)s::text[],"""
    letters = " %(m_notify)s::smallint[], %(m_orcpt)s::text[],"
    return f"""
    WITH refused AS MATERIALIZED (
        SELECT DISTINCT s.address
        FROM unnest(%(m_address)s::text[], %(m_owner)b::uuid[], %(m_priority)s::smallint[])
             AS m (address, owner, priority)
        JOIN relay.suppressions s
          ON s.address = m.address AND s.owner IN ('{ADMINISTRATOR_ID}', m.owner)
         AND (s.cause <> 'unsubscribed' OR s.owner = m.owner AND m.priority = {BULK})
        -- What is asked for again has its answer, whoever was suppressed meanwhile.
        WHERE NOT EXISTS (
            SELECT
            FROM relay.outbound_keys k
            WHERE k.owner = %(key_owner)s
              AND k.key = %(key)s::text
              AND k.created_at >= clock_timestamp() - make_interval(secs => {KEY_LIFETIME})
        )
    ), key AS (
        INSERT INTO relay.outbound_keys AS k (owner, key, body_hash, ids)
        SELECT %(key_owner)s, %(key)s::text, %(key_hash)s::bytea, %(m_id)b::uuid[]
        WHERE %(key)s::text IS NOT NULL
          AND NOT EXISTS (SELECT FROM refused)
        ON CONFLICT (owner, key) DO UPDATE
        SET body_hash = excluded.body_hash, ids = excluded.ids, created_at = excluded.created_at
        WHERE k.created_at < clock_timestamp() - make_interval(secs => {KEY_LIFETIME})
        RETURNING 1
    ), go AS MATERIALIZED (
        SELECT clock_timestamp() AS at
        WHERE NOT EXISTS (SELECT FROM refused)
          AND (%(key)s::text IS NULL OR EXISTS (SELECT FROM key))
    ), contents AS (
        INSERT INTO relay.outbound_contents (id, owner, sender, sender_name, subject, text_body,
            html_body, headers, attachments, blob, size, tag, created_at{of_contents})
        SELECT c.id, c.owner, c.sender, c.sender_name, c.subject, c.text_body, c.html_body,
               c.headers::jsonb, c.attachments::jsonb, c.blob, c.size, c.tag, go.at{of_contents}
        FROM go CROSS JOIN unnest(
                %(c_id)b::uuid[], %(c_owner)b::uuid[], %(c_sender)s::text[],
                %(c_sender_name)s::text[], %(c_subject)s::text[], %(c_text)s::text[],
                %(c_html)s::text[], %(c_headers)s::text[], %(c_attachments)s::text[],
                %(c_blob)b::bytea[], %(c_size)s::integer[],{contents if submitted else ""}
                %(c_tag)s::text[])
            AS c (id, owner, sender, sender_name, subject, text_body, html_body, headers,
                  attachments, blob, size{of_contents}, tag)
        ON CONFLICT (id) DO NOTHING
    ), given AS MATERIALIZED (
        -- A microsecond apart, the first earliest and none in the future: first come, first sent,
        -- and the claim's floor can rise within the batch.  A send_at that has passed by the clock
        -- here (a node's may be off) counts as none, for the same reason.
        SELECT m.*, go.at,
               GREATEST(m.send_at, go.at - make_interval(secs => 0.000001 * (%(count)s - m.place)))
                   AS run_at,
               s.id AS sender_id,
               CASE WHEN s.id IS NULL THEN m.unrouted
                    ELSE relay.outbound_lane(m.owner, m.domain, s.id) END AS lane
        FROM go CROSS JOIN unnest(
                %(m_id)b::uuid[], %(m_content)b::uuid[], %(m_owner)b::uuid[],
                %(m_recipient)s::text[], %(m_name)s::text[], %(m_address)s::text[],
                %(m_domain)s::text[], %(m_priority)s::smallint[], %(m_hold)s::boolean[],
                %(m_lane)s::bigint[], %(m_sender)s::text[], %(m_send_at)s::timestamptz[],
                %(m_not_after)s::timestamptz[],{letters if submitted else ""}
                %(m_token)s::bigint[])
            WITH ORDINALITY AS m (id, content_id, owner, recipient, name, address, domain, priority,
                                  hold, unrouted, sender, send_at, not_after{of_letters}, token,
                                  place)
        -- Looked up where it is queued: who makes a sender and mails from it has its lane.
        LEFT JOIN relay.senders s ON s.owner = m.owner AND s.address = lower(m.sender)
    ), letters AS (
        INSERT INTO relay.outbound_letters (id, content_id, owner, recipient, recipient_name,
            address, domain, priority, hold_unknown, created_at, not_after, token{of_letters})
        SELECT g.id, g.content_id, g.owner, g.recipient, g.name, g.address, g.domain, g.priority,
               g.hold, CASE WHEN g.send_at IS NULL THEN g.run_at ELSE g.at END, g.not_after,
               g.token{of_letters}
        FROM given g
        ON CONFLICT (id) DO NOTHING
        RETURNING id
    ), due AS (
        INSERT INTO relay.outbound_due (id, lane, run_at, priority, not_after)
        SELECT g.id, g.lane, g.run_at, g.priority, g.not_after
        FROM given g
        JOIN letters l ON l.id = g.id
    )
    SELECT (SELECT array_agg(address) FROM refused),
           EXISTS (SELECT FROM go),
           (SELECT min(run_at) FROM given),
           (SELECT array_agg(g.lane ORDER BY g.place)
            FROM given g
            HAVING bool_or(g.sender_id IS NOT NULL))
    """  # noqa: S608 - constants of this module only


_ENQUEUE, _ENQUEUE_SUBMITTED = _statement(submitted=False), _statement(submitted=True)


async def enqueue(
    pool: Pool,
    messages: Sequence[Message],
    *,
    key: str | None = None,
    key_hash: bytes | None = None,
    ids: Sequence[UUID] | None = None,
    conn: Connection | None = None,
) -> Enqueued:
    """Queue messages, all or none, in one statement; one row a recipient.

    `key` with `key_hash` (`body_hash` of the call's body) makes the call idempotent for its
    owner: within 24 hours the same key with the same hash gives the same ids, with another
    raises `KeyConflict`.  `ids` (one a recipient, from `new_ids`) makes a repeated call
    harmless.  With `conn` it belongs to that connection's transaction.  `Suppressed` when any
    recipient is on the list, `Invalid` for a value that cannot be stored.

    Nothing is announced: tell the local claimer, and other nodes through `announce`.
    """
    owner = messages[0].owner if messages else ADMINISTRATOR_ID
    if key is not None:
        if not 1 <= len(key.encode("utf-8", "surrogatepass")) <= _MAX_KEY:
            raise Invalid(f"an idempotency key has 1 to {_MAX_KEY} bytes")
        if key_hash is None or any(m.owner != owner for m in messages):
            raise Bug("an idempotency key needs a body hash and one owner")
    repeated = ids is not None  # or perhaps: then what is stored may only be found
    rows, params = _arrays(messages, ids)
    if not rows:
        return Enqueued([])
    params |= {"key": key, "key_hash": key_hash, "key_owner": owner}
    size = sum(params["c_size"])
    timeout = pool.call_timeout + size / _BYTES_A_SECOND + len(rows) / _LETTERS_A_SECOND
    statement = _ENQUEUE
    if any(one.submitted or one.route_as or _tls_optional(one) for one in messages):
        statement = _ENQUEUE_SUBMITTED
        params |= _of_submitted(messages)
    refused, stored, due_at, lanes = await _row(
        pool, statement, params, conn, durable=repeated, timeout=timeout
    )
    if refused:
        raise Suppressed(sorted(refused))
    if stored:
        if lanes is not None:
            rows = [row._replace(lane=lane) for row, lane in zip(rows, lanes, strict=True)]
        return Enqueued(rows, due_at=due_at)
    return await _replay(pool, owner, str(key), key_hash, conn)


async def _replay(
    pool: Pool, owner: UUID, key: str, key_hash: bytes | None, conn: Connection | None
) -> Enqueued:
    # The first call may have ended in doubt: what it stored is promised after a commit of our own.
    row = await _row(
        pool,
        """
        SELECT k.body_hash = %(hash)s::bytea,
               (SELECT array_agg(l.recipient ORDER BY i.place)
                FROM unnest(k.ids) WITH ORDINALITY AS i (id, place)
                LEFT JOIN relay.outbound_letters l ON l.id = i.id),
               k.ids
        FROM relay.outbound_keys k
        WHERE k.owner = %(owner)s AND k.key = %(key)s
        """,
        {"owner": owner, "key": key, "hash": key_hash},
        conn,
        durable=True,
    )
    if row is None or not row[0]:
        # None: it ran out between two statements, and whoever took it over said something else.
        raise KeyConflict("the idempotency key was used for another body within 24 hours")
    _, recipients, ids = row
    return Enqueued(
        [
            Queued(known, recipient or "", 0, 0, "", owner)
            for known, recipient in zip(ids, recipients, strict=True)
        ],
        replayed=True,
    )


async def _row(
    pool: Pool,
    sql: str,
    params: dict[str, Any],
    conn: Connection | None,
    *,
    durable: bool = False,
    timeout: float | None = None,  # noqa: ASYNC109 - the pool's
) -> Any:
    if conn is None:
        if durable:
            rows = await pool.fetch_durable(sql, params, timeout=timeout)
            return rows[0] if rows else None
        return await pool.fetch_row(sql, params, timeout=timeout)
    # The caller's commit is one of its own: taking the key locks its row, which the log records.
    cursor = await conn.execute(sql, params)
    return await cursor.fetchone()


async def announce(pool: Pool, payload: str = "") -> None:
    """Tell all nodes that something may be due; `FLUSH`: and that pauses end; `HIGH`: high mail.

    Never in the transaction of an insert: NOTIFY takes a lock at commit that all writers
    share.  Call it afterwards, at most every 20 to 50 ms whatever was inserted.
    """
    await pool.execute("SELECT pg_notify(%s, %s)", (OUTBOUND, payload))


def domain_of(address: str) -> str:
    """The destination of an address: its domain in lower case, as A-labels where it has them."""
    domain = address.rpartition("@")[2].lower().rstrip(".")
    if not domain.isascii():
        with suppress(ValueError):
            return a_labels(domain)
    return domain


def _arrays(
    messages: Sequence[Message], ids: Sequence[UUID] | None
) -> tuple[list[Queued], dict[str, Any]]:
    """Turn messages into the arrays of `_ENQUEUE`."""
    count = sum(len(message.recipients) for message in messages)
    if ids is None:
        ids = new_ids(count)
    elif len(ids) != count:
        raise Bug(f"{len(ids)} ids for {count} recipients")
    rows: list[Queued] = []
    contents: list[tuple[Any, ...]] = []
    letters: list[tuple[Any, ...]] = []
    for message in messages:
        if not message.recipients:
            continue
        try:
            priority = PRIORITIES.index(message.priority)
        except ValueError:
            raise Invalid("priority is high, normal or bulk") from None
        content_id = ids[len(rows)]
        contents.append((content_id, *_content(message)))
        for recipient in message.recipients:
            address = recipient.address.lower()
            domain = domain_of(address)
            lane = lane_of(message.owner, domain)  # the statement puts it right for a sender's mail
            row = Queued(
                *(ids[len(rows)], recipient.address, lane, priority, domain, message.owner)
            )
            rows.append(row)
            letters.append(
                (
                    row.id,
                    content_id,
                    message.owner,
                    recipient.address,
                    recipient.name or None,
                    address,
                    domain,
                    priority,
                    message.hold_unknown,
                    lane,
                    message.route_as or message.sender.address,
                    message.send_at,
                    message.not_after,
                    message.letter_of,
                )
            )
    params: dict[str, Any] = {"count": count}
    params |= _columns("c_", _CONTENT_COLUMNS, contents)
    params |= _columns("m_", _LETTER_COLUMNS, letters)
    return rows, params


def _tls_optional(message: Message) -> bool:
    """Whether it says TLS-Required: No, in the header of its author or in one of ours."""
    return message.tls_optional or any(
        name.lower() == "tls-required" and value.strip().lower() == "no"
        for name, value in message.headers.items()
    )


def _of_submitted(messages: Sequence[Message]) -> dict[str, list[Any]]:
    """What `_ENQUEUE_SUBMITTED` takes besides, in the order of `_arrays`."""
    contents: list[tuple[Any, ...]] = []
    letters: list[tuple[Any, ...]] = []
    for message in messages:
        if not message.recipients:
            continue
        asked = message.submitted
        ret, envid, require_tls = NO_PARAMETERS if asked is None else asked.mail_parameters
        # What must go by TLS does, whatever its header says (RFC 8689, 4.1).
        tls = True if require_tls else False if _tls_optional(message) else None
        contents.append((ret, envid, tls, message.route_as))
        for recipient in message.recipients:
            if asked is None or not asked.reports:
                letters.append((None, None))
            else:
                parameters = asked.rcpt_parameters.get(recipient.address.lower(), NOTHING_SAID)
                letters.append((int(parameters.notify), parameters.orcpt))
    return _columns("c_", ("ret", "envid", "require_tls", "route_as"), contents) | _columns(
        "m_", ("notify", "orcpt"), letters
    )


_CONTENT_COLUMNS = (
    "id",
    "owner",
    "sender",
    "sender_name",
    "subject",
    "text",
    "html",
    "headers",
    "attachments",
    "blob",
    "size",
    "tag",
)
_LETTER_COLUMNS = (
    "id",
    "content",
    "owner",
    "recipient",
    "name",
    "address",
    "domain",
    "priority",
    "hold",
    "lane",
    "sender",
    "send_at",
    "not_after",
    "token",
)


def _columns(
    prefix: str, names: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> dict[str, list[Any]]:
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return {prefix + name: list(column) for name, column in zip(names, columns, strict=True)}


def _content(message: Message) -> tuple[Any, ...]:
    texts = (message.sender.address, message.subject, message.text or "", message.html or "")
    if any("\0" in text for text in texts):
        raise Invalid("a message cannot contain the character NUL")
    if message.raw is not None:
        head = message.owner, message.sender.address, None, message.subject
        return (*head, None, None, None, None, message.raw, len(message.raw), message.tag)
    headers = json.dumps(dict(message.headers)) if message.headers else None
    attachments = blob = None
    if message.attachments:
        blob = b"".join(file.content for file in message.attachments)
        attachments = json.dumps(
            [
                {"filename": f.filename, "content_type": f.content_type, "size": len(f.content)}
                for f in message.attachments
            ]
        )
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts[2:])
    size += len(headers or "") + len(blob or b"")
    return (
        message.owner,
        message.sender.address,
        message.sender.name or None,
        message.subject,
        message.text,
        message.html,
        headers,
        attachments,
        blob,
        size,
        message.tag,
    )
