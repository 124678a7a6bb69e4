"""Mail as it was sent: what a mail left in the mailboxes of its recipients, taken as one.

A mail to three recipients is three messages here, one in each mailbox.  Other programs that catch
mail keep one, with three recipients, and so do those who test with them; `Mails` shows it so, over
the mailboxes within a `Reach`.

Messages are of one mail when they came within a millisecond of each other, into mailboxes that are
not the same, with the same reverse-path, size, headers and attachments.  (Two such mails, each to
several recipients, that come together may swap copies: nobody can tell these apart.)

Promises
- Only what was parsed is shown, so that what is shown is whole; what is counted is what is shown.
  What was accepted and is not shown yet, `unparsed` tells.
- A mail's id is that of its first message, whichever of them was found.
- What is changed or deleted of a mail is so of all its messages within reach.
- Of each mail that a search gives a bounded part is read and kept, however much its sender wrote:
  `LISTED` characters of the headers that a list shows, by which the addresses that are too many
  are left out; `find` gives all of its mail.
- Counts are exact up to `COUNTED`; of more there are at least so many.
- A search ends within `SECONDS`, with what it has found; a bulk change as those of `AllMessages`.

Fails with `DatabaseUnavailable` from the pool, `CutShort` for a bulk change that takes too long.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

import trio

from relay.db.pool import Pool
from relay.ids import parse_uuid
from relay.mailboxes.all_messages import BULK_SECONDS, AllMessages, CutShort
from relay.mailboxes.changes import Change
from relay.mailboxes.matching import DETAILS
from relay.mailboxes.query import Term
from relay.mailboxes.records import (
    ENTRY_COLUMNS,
    PLACED_COLUMNS,
    SHOWN,
    Entry,
    Placed,
    entry_of,
)
from relay.mailboxes.summary import MAX_VALUE
from relay.mailboxes.visibility import LIVE, Reach
from relay.mailboxes.walks import Walk

COUNTED = 1000
"""Messages up to which a search counts what it finds."""
SECONDS = 5.0
"""How long a search goes on beginning steps."""
UNPARSED = 10_000
"""Messages that wait to be parsed, up to which those are looked for that somebody may see."""
_AT_ONCE = 500  # mails that one statement changes
LISTED = 4096
"""Characters of its headers that a search gives of a mail: those of about a hundred recipients."""
_LOOKED_AT = 32 * 1024  # the same, of those that are looked at by `Criteria.keep`
_READ = 64 * 1024  # characters of what was found in a mail that are read for these
_OF_LISTS = frozenset({"to", "cc", "bcc", "reply-to", "message-id"})
_LOADED, _LOADED_BYTES = 50, 1 << 20  # mails, and of what was found in them, that are read at once
_HEADER = 150  # bytes of memory that a header, or a recipient, takes beside its value
_BEYOND = 5  # columns behind those of an entry
_INLINE, _ATTACHED = {"content_id": "it has one"}, {"content_id": None}  # of a list's mail
_BETWEEN = re.compile(r"\s*[\[,]\s*(?=[^\s\]])")
_DECODER = json.JSONDecoder()
_APART = 1 << 80  # a millisecond, in what ids begin with


@dataclass(frozen=True)
class Mail:
    """One mail.

    `recipients`: of its envelope, as far as they are within reach; `headers`: [name, decoded value]
    in order; `attachments`: as of `ReceivedMessage`; `login`: as whom its sender signed in, if that
    is known.  `mailbox_id` has the message `id`.  Of a search's, `headers` has those that lists
    show (`LISTED`), and `attachments` no more than how many there are, and which are inline.
    `is_cut`: those that lists show may say more than is here.
    """

    id: UUID
    mailbox_id: UUID
    ids: list[UUID]
    recipients: list[str]
    reverse_path: str
    is_read: bool
    entry: Entry
    placed: Placed
    headers: list[list[str]] = field(default_factory=list)
    attachments: list[dict[str, Any]] = field(default_factory=list)
    login: str | None = None
    is_cut: bool = False

    @property
    def length(self) -> int:
        """Characters of its headers."""
        return sum(len(value) for _, value in self.headers)

    @property
    def loaded(self) -> int:
        """Bytes of memory that it takes, about."""
        headers = sum(sys.getsizeof(value) + _HEADER for _, value in self.headers)
        return headers + self.entry.loaded + self.placed.loaded + _HEADER * len(self.recipients)

    def values(self, name: str) -> list[str]:
        """What the header says, as often as it stands there."""
        return [value for known, value in self.headers if known.lower() == name]

    def value(self, name: str) -> str:
        """What the first of these headers says; empty where there is none."""
        return next(iter(self.values(name)), "")


@dataclass(frozen=True)
class Criteria:
    """What is looked for: the mail that fulfils all terms of one of the `either`, and is kept.

    `keep` sees the newest `COUNTED` of what the terms find, in a thread.
    """

    either: tuple[tuple[Term, ...], ...] = ((),)
    keep: Callable[[Mail], bool] | None = None


EVERYTHING = Criteria()
"""What finds all."""


@dataclass(frozen=True)
class Found:
    """A part of what was found, newest first, and how much there is in all."""

    mails: list[Mail]
    count: int
    unread: int


class _Head(NamedTuple):
    """What tells the messages of one mail from others."""

    id: UUID
    mailbox_id: UUID
    is_read: bool
    address: str
    likeness: tuple[Any, ...]

    @property
    def length(self) -> int:
        """Bytes of what was found in it."""
        length: int | None = self.likeness[-1]
        return length or 0


class Mails:
    """All mail within a caller's reach."""

    def __init__(self, pool: Pool, messages: AllMessages, *, seconds: float = SECONDS) -> None:
        self._pool = pool
        self._messages = messages
        self._seconds = seconds

    async def search(
        self,
        reach: Reach,
        criteria: Criteria = EVERYTHING,
        *,
        start: int = 0,
        limit: int = 50,
        room: Callable[[int], None] = lambda _: None,
    ) -> Found:
        """So many of what is found, newest first, from the place `start` on.

        `room` is told how many bytes of memory they take before some are read, and may refuse.
        """
        most = max(COUNTED, start + limit) + 1
        until = trio.current_time() + self._seconds
        ids, _ = await self._ids(reach, criteria.either, most)
        if criteria.keep is not None:
            kept, _ = await self._kept(reach, ids[:most], criteria.keep, until)
            mails = await self._whole(reach, [*kept][start : start + limit], LISTED, room)
            return Found(mails, len(kept), sum(not is_read for is_read in kept.values()))
        groups = _folded(await self._heads(reach, ids[:most]))
        shown = [group[0].id for group in groups[start : start + limit]]
        return Found(
            await self._whole(reach, shown, LISTED, room),
            len(groups),
            sum(not any(head.is_read for head in group) for group in groups),
        )

    async def find(self, reach: Reach, mail_id: str) -> Mail | None:
        """The mail of a message; None for what is no id, and for what is not within reach."""
        wanted = parse_uuid(mail_id)
        found = [] if wanted is None else await self._whole(reach, [wanted])
        return found[0] if found else None

    async def unparsed(self, reach: Reach, among: Sequence[UUID] | None = None) -> list[UUID]:
        """Messages that were accepted and wait to be parsed: all, or those of some ids.

        Of a backlog above `UNPARSED` only a part is looked at, but for a reach of one mailbox.
        """
        known = "true" if among is None else "message_id = ANY (%(among)s::uuid[])"
        its = "true" if reach.mailbox_id is None else "mailbox_id = %(reach_mailbox)s"
        rows = await self._pool.fetch(
            # Look-ups, whatever is thought of a table that is empty as a rule.
            f"""
            WITH waiting AS MATERIALIZED (
                SELECT message_id, mailbox_id
                FROM relay.unsummarised
                WHERE {known}
                  AND {its}
                LIMIT %(most)s
            )
            SELECT w.message_id
            FROM waiting w
            CROSS JOIN LATERAL (
                SELECT FROM relay.mailboxes b WHERE b.id = w.mailbox_id AND {LIVE} AND {reach.sql}
                OFFSET 0
            ) seen
            CROSS JOIN LATERAL (
                SELECT FROM relay.messages m WHERE m.id = w.message_id
                OFFSET 0
            ) there
            WHERE NOT EXISTS (
                SELECT FROM relay.summaries s WHERE s.message_id = w.message_id OFFSET 0
            )
            """,  # noqa: S608 - constants of ours only
            {"among": list(among or ()), "most": UNPARSED, **reach.values()},
        )
        return [one for (one,) in rows]

    async def tags(self, reach: Reach) -> dict[str, int]:
        """The tags there are, each with the messages that have it."""
        # Each message once, or its tags would be read as often as it has some; of a caller's own
        # mail without looking at others' tags.
        tagged = """
            (SELECT DISTINCT message_id FROM relay.tagged) g
            JOIN relay.summaries s ON s.message_id = g.message_id
            JOIN relay.mailboxes b ON b.id = s.mailbox_id"""
        own = "relay.mailboxes b JOIN relay.summaries s ON s.mailbox_id = b.id"
        rows = await self._pool.fetch(
            f"""
            SELECT had.tag, count(*)
            FROM {tagged if reach.sees_all else own}
            CROSS JOIN LATERAL unnest(s.tags) had (tag)
            WHERE {LIVE}
              AND {reach.sql}
            GROUP BY had.tag
            ORDER BY had.tag
            LIMIT %(most)s
            """,  # noqa: S608 - constants of ours only
            {"most": COUNTED, **reach.values()},
        )
        return dict(rows)

    async def database_size(self) -> int:
        """The bytes of the database on its disk."""
        size: int = await self._pool.fetch_value("SELECT pg_database_size(current_database())")
        return size

    async def delete(self, reach: Reach, mail_ids: Iterable[str]) -> int:
        """Delete these for good; return how many messages went."""

        async def apply(ids: Sequence[UUID]) -> int:
            return await self._messages.delete_these(reach, ids)

        return await self._in_steps(reach, _uuids(mail_ids), apply)

    async def delete_found(self, reach: Reach, criteria: Criteria) -> int:
        """Delete for good what is found; return how many messages went."""
        return await self.delete(reach, map(str, await self._all(reach, criteria)))

    async def change(self, reach: Reach, mail_ids: Iterable[str], change: Change) -> int:
        """Mark or tag these; return how many messages became others.  `NotParsed` as elsewhere."""

        async def apply(ids: Sequence[UUID]) -> int:
            return await self._messages.change_these(reach, ids, change)

        return await self._in_steps(reach, _uuids(mail_ids), apply)

    async def change_found(self, reach: Reach, criteria: Criteria, change: Change) -> int:
        """Mark or tag what is found; return how many messages became others."""
        return await self.change(reach, map(str, await self._all(reach, criteria)), change)

    async def _ids(
        self,
        reach: Reach,
        either: Sequence[Sequence[Term]],
        most: int | None,
    ) -> tuple[list[UUID], bool]:
        """Ids of what is found, newest first, of each alternative `most` (None: all), and whether
        that is all there was time for."""
        found: set[UUID] = set()
        ends_at = trio.current_time() + (self._seconds if most else BULK_SECONDS)
        short = False
        for terms in either:
            below, left = None, most
            while left is None or left > 0:
                stretch = await Walk(self._pool, reach, terms).find(
                    below=below, limit=_AT_ONCE if left is None else left
                )
                found.update(stretch.ids)
                left = None if left is None else left - len(stretch.ids)
                if (below := stretch.below) is None:
                    break
                if trio.current_time() > ends_at:
                    short = True
                    break
        return sorted(found, reverse=True), short

    async def _all(self, reach: Reach, criteria: Criteria) -> list[UUID]:
        """Ids of everything that is found."""
        if criteria.keep is None:
            ids, short = await self._ids(reach, criteria.either, None)
            if short:
                raise CutShort(0, f"not done in {BULK_SECONDS:g} s")
            return ids
        until = trio.current_time() + BULK_SECONDS
        ids, _ = await self._ids(reach, criteria.either, COUNTED)
        kept, short = await self._kept(reach, ids, criteria.keep, until)
        if short:
            raise CutShort(0, f"not done in {BULK_SECONDS:g} s")
        return [*kept]

    async def _kept(
        self, reach: Reach, ids: Sequence[UUID], keep: Callable[[Mail], bool], until: float
    ) -> tuple[dict[UUID, bool], bool]:
        """The mails of these messages that are kept, and whether each was read, newest first; and
        whether the time was over before all were looked at.

        Strangers wrote what is looked at: a few mails are in memory at once, and it is done beside
        the loop.
        """
        kept: dict[UUID, bool] = {}  # a mail that has messages in two steps is there once
        for at in range(0, len(ids), _LOADED):
            if at and trio.current_time() > until:
                return kept, True
            mails = await self._whole(reach, ids[at : at + _LOADED], _LOOKED_AT)
            found = await trio.to_thread.run_sync(lambda some: [*filter(keep, some)], mails)
            kept.update((mail.id, mail.is_read) for mail in found)
        return kept, False

    async def _in_steps(
        self,
        reach: Reach,
        ids: Sequence[UUID],
        apply: Callable[[Sequence[UUID]], Awaitable[int]],
    ) -> int:
        done, until = 0, trio.current_time() + BULK_SECONDS
        for at in range(0, len(ids), _AT_ONCE):
            if trio.current_time() > until:
                raise CutShort(done, f"not done in {BULK_SECONDS:g} s")
            some = list(ids[at : at + _AT_ONCE])
            copies = [head.id for head in await self._copies(reach, some)]
            # What was not parsed yet has no copies that are known, and is meant all the same.
            done += await apply(list({*some, *copies}))
        return done

    async def _heads(self, reach: Reach, ids: Sequence[UUID]) -> list[_Head]:
        """Those of these messages that were parsed and are within reach."""
        rows = await self._pool.fetch(
            f"""
            SELECT m.id, m.mailbox_id, m.is_read, {SHOWN}, m.size, m.reverse_path,
                   hashtextextended(left({DETAILS}, {_READ}), 0), octet_length({DETAILS})
            FROM relay.messages m
            JOIN relay.mailboxes b ON b.id = m.mailbox_id
            JOIN relay.summaries s ON s.message_id = m.id
            WHERE m.id = ANY (%(ids)s)
              AND {LIVE}
              AND {reach.sql}
            """,  # noqa: S608 - constants of ours only
            {"ids": list(ids), **reach.values()},
        )
        return [_head(row) for row in rows]

    async def _copies(self, reach: Reach, ids: Sequence[UUID]) -> list[_Head]:
        """These messages and the others of their mails."""
        groups = _folded(await self._heads(reach, await self._near(reach, ids)))
        wanted = set(ids)
        return [
            head for group in groups if not wanted.isdisjoint(one.id for one in group)
            for head in group
        ]  # fmt: skip

    async def _near(self, reach: Reach, ids: Sequence[UUID]) -> list[UUID]:
        """Ids of messages that may be of one mail with these: as long, and as old."""
        rows = await self._pool.fetch(
            # By the primary key: what came within a millisecond is little.
            f"""
            SELECT DISTINCT m.id
            FROM unnest(%(ids)s::uuid[], %(lows)s::uuid[], %(highs)s::uuid[]) o (id, low, high)
            JOIN relay.messages f ON f.id = o.id
            CROSS JOIN LATERAL (
                SELECT *
                FROM relay.messages
                WHERE id BETWEEN o.low AND o.high
                  AND size = f.size
                OFFSET 0
            ) m
            JOIN relay.mailboxes b ON b.id = m.mailbox_id
            WHERE {LIVE}
              AND {reach.sql}
            """,  # noqa: S608 - constants of ours only
            {
                "ids": list(ids),
                "lows": [UUID(int=max(one.int - _APART, 0)) for one in ids],
                "highs": [UUID(int=min(one.int + _APART, 2**128 - 1)) for one in ids],
                **reach.values(),
            },
        )
        return [one for (one,) in rows]

    async def _whole(
        self,
        reach: Reach,
        ids: Sequence[UUID],
        most: int | None = None,
        room: Callable[[int], None] = lambda _: None,
    ) -> list[Mail]:
        """The mails of these messages, each once, newest first.

        `most`: characters of the headers for lists; None: all that there is.  `room`: see `search`.
        """
        if not ids:
            return []
        groups = _folded(await self._copies(reach, ids))
        mails: list[Mail] = []
        kept = 0
        while groups:
            count = size = 0
            for group in groups[:_LOADED]:
                length = group[0].length if most is None else min(group[0].length, 4 * _READ)
                if count and size + length > _LOADED_BYTES:
                    break
                count, size = count + 1, size + length
            room(kept + size)
            some = await self._loaded(reach, groups[:count], most)
            kept += sum(mail.loaded for mail in some)
            mails += some
            del groups[:count]
        room(kept)
        return mails

    async def _loaded(
        self, reach: Reach, groups: Sequence[Sequence[_Head]], most: int | None
    ) -> list[Mail]:
        """The mails of some groups of messages; those whose first is gone left out."""
        details, attachments = DETAILS, "s.attachments::text"
        if most is not None:
            details, attachments = f"left({details}, {_READ})", f"left({attachments}, {_READ})"
        rows = await self._pool.fetch(
            f"""
            SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}, m.mailbox_id, m.reverse_path, {details},
                   CASE WHEN s.details IS NULL THEN {attachments} END, m.login
            FROM relay.messages m
            JOIN relay.mailboxes b ON b.id = m.mailbox_id
            JOIN relay.summaries s ON s.message_id = m.id
            WHERE m.id = ANY (%(ids)s)
              AND {LIVE}
              AND {reach.sql}
            """,  # noqa: S608 - constants of ours only
            {"ids": [group[0].id for group in groups], **reach.values()},
        )
        by_id = {row[0]: row for row in rows}
        mails = []
        for group in groups:
            if (row := by_id.pop(group[0].id, None)) is not None:
                mails.append(_mail(row, group, most))
                await trio.lowlevel.checkpoint()  # their headers may be long
        return mails


def _folded(heads: Iterable[_Head]) -> list[list[_Head]]:
    """The messages of each mail, oldest first; the newest mail first."""
    groups: list[list[_Head]] = []
    last: dict[tuple[Any, ...], list[_Head]] = {}  # of those who are alike
    for head in sorted(heads):
        group = last.get(head.likeness)
        if (
            group is None
            or head.id.int - group[0].id.int > _APART
            or any(head.mailbox_id == one.mailbox_id for one in group)
        ):
            group = last[head.likeness] = []
            groups.append(group)
        group.append(head)
    return groups[::-1]


def _head(row: tuple[Any, ...]) -> _Head:
    message_id, mailbox_id, is_read, address, *likeness = row
    return _Head(message_id, mailbox_id, is_read, address, tuple(likeness))


def _mail(row: tuple[Any, ...], group: Sequence[_Head], most: int | None) -> Mail:
    """The mail of a row of what `_loaded` selects, and of the messages of which it is the first."""
    entry, placed = entry_of(row[:-_BEYOND])
    mailbox_id, reverse_path, written, beside, login = row[-_BEYOND:]
    headers, attachments, is_cut = _found_in(written or "", beside or "")
    is_cut = is_cut or any(
        len(value) >= MAX_VALUE for name, value in headers if name.lower() in _OF_LISTS
    )
    if most is not None:
        headers, shortened = _of_lists(headers, most)
        is_cut = is_cut or shortened
        if not attachments and entry.has_attachments:  # behind what was read
            attachments = [_ATTACHED]
        attachments = [_INLINE if one.get("content_id") else _ATTACHED for one in attachments]
    snippet = placed.as_json()["snippet"]
    return Mail(
        id=entry.id,
        mailbox_id=mailbox_id,
        ids=[head.id for head in group],
        recipients=[head.address for head in group],
        reverse_path=reverse_path,
        is_read=any(head.is_read for head in group),
        entry=entry,
        placed=replace(placed, beginning=snippet, is_html=False),
        headers=headers,
        attachments=attachments,
        login=login,
        is_cut=is_cut,
    )


def _found_in(written: str, beside: str) -> tuple[list[list[str]], list[dict[str, Any]], bool]:
    """Headers and attachments of `DETAILS`, and of the column that old rows have `beside` it; as
    far as they are there, of what was cut, and whether headers were."""
    try:
        details = json.loads(written or "{}")
        headers, attachments = details.get("headers") or [], details.get("attachments") or []
        is_cut = False
    except ValueError:
        headers, end = _items(written, 0)
        attachments, is_cut = _items(written, end)[0], end == len(written)
    return headers, attachments or _items(beside, 0)[0], is_cut


def _items(text: str, at: int) -> tuple[list[Any], int]:
    """The items of the first JSON list behind a place, as far as they are whole, and its end."""
    found: list[Any] = []
    at = text.find("[", at)
    while at >= 0 and (between := _BETWEEN.match(text, at)):
        try:
            item, at = _DECODER.raw_decode(text, between.end())
        except ValueError:
            return found, len(text)
        found.append(item)
    return found, len(text) if at < 0 else at + 1


def _of_lists(headers: Iterable[list[str]], most: int) -> tuple[list[list[str]], bool]:
    """Those that lists show: the beginning of what they say, in whole addresses; and whether they
    say more."""
    found, is_cut = [], False
    shown = [(name.lower(), value) for name, value in headers if name.lower() in _OF_LISTS]
    for name, value in sorted(shown, key=lambda one: one[0] != "message-id"):
        if len(value) > most:
            value, is_cut = value[: max(0, value.rfind(",", 0, most))], True
        if value:
            most -= len(value)
            found.append([name, value])
    return found, is_cut


def _uuids(ids: Iterable[str]) -> list[UUID]:
    """Those of these that are ids; others name nothing."""
    return [found for one in ids if (found := parse_uuid(one)) is not None]
