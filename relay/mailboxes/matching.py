"""A query (`query.py`) as SQL: the condition on a message that its terms make.  Pure.

In the SQL `b` is relay.mailboxes, `m` relay.messages and `s` relay.summaries, which is NULL while a
message waits for its parsing: then it has a sender (the reverse-path), a recipient, a size and a
time, and no subject, text, tag or attachment.

The sender's name is in the headers alone, which are JSON: they are only taken apart where the name
occurs in them at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from relay.db.text import holds, sought, storable
from relay.mailboxes.query import Term

SENDER = "coalesce(s.from_address, m.reverse_path)"
# The column's own collation knows the case of ASCII alone.
RECIPIENT = 'coalesce(m.recipient, b.address) COLLATE "default"'
# Its domain in letters, where it has A-labels: either spelling finds it.
IN_UNICODE = """CASE WHEN strpos(b.address, 'xn--') > 0
    THEN relay.in_unicode(b.address COLLATE "default") END"""
_MAILBOX = 'b.address COLLATE "default"'
TEXT = "coalesce(s.body_text, s.body_html)"
# Rows from before `details` have the column.
DETAILS = """coalesce(s.details, CASE WHEN s.headers IS NOT NULL
    THEN json_build_object('headers', s.headers)::text END)"""


TEXT_BYTES = 4 * 2**20
"""Bytes that a statement looks for one term in: 0.2 s, most of it to fold their case."""


class Condition(NamedTuple):
    """What a message must fulfil: SQL, and the values of its parameters.

    With terms that are looked for in texts, `text_bytes` is among them (`first_texts`).
    """

    sql: str
    values: dict[str, Any]


def condition(terms: Sequence[Term]) -> Condition:
    """Return the condition that all of the terms make; without any, one that always holds."""
    parts: list[str] = []
    values: dict[str, Any] = {}
    # What costs little to look at first.
    for number, term in enumerate(sorted(terms, key=_cost)):
        name = f"q{number}"
        parts.append(_signed(term, _part(term, name, values)))
    if texts := sum(term.field in {"any", "from"} for term in terms):
        values["text_bytes"] = TEXT_BYTES // texts
    return Condition("\n    AND ".join(parts) or "true", values)


def first_texts(wanted: Condition, order: str) -> str:
    """Return the statement that gives of the messages `first` as many as one is to look through.

    In this order, the last of them the first that goes beyond `text_bytes`; all where no text is
    looked through.  How long texts are stands in their rows: none is read for it.
    """
    if "text_bytes" not in wanted.values:
        return "SELECT * FROM first"
    return f"""
        SELECT *
        FROM (
            SELECT first.*, sum(bytes) OVER (
                ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
            FROM first
            LEFT JOIN LATERAL (
                SELECT coalesce(octet_length({TEXT}), 0)
                       + coalesce(octet_length(s.details), 0) AS bytes
                FROM relay.summaries s
                WHERE message_id = first.id
                OFFSET 0
            ) texts ON true
        ) sized
        WHERE coalesce(before, 0) < %(text_bytes)s"""  # noqa: S608 - constants of ours only


def summary_condition(terms: Sequence[Term]) -> str:
    """Return what of `condition` needs no message, as SQL with the same parameters.

    For messages whose summary names a sender, and whose recipient is the mailbox's address: where
    it does not hold, `condition` does not.
    """
    parts = [
        _signed(term, _part(term, f"q{number}", {}, "s.from_address", _MAILBOX))
        for number, term in enumerate(sorted(terms, key=_cost))
        if term.field not in _OF_MESSAGES
    ]
    return " AND ".join(parts) or "true"


def _signed(term: Term, part: str) -> str:
    return f"({part}) IS NOT TRUE" if term.negated else f"({part})"


def _part(
    term: Term,
    name: str,
    values: dict[str, Any],
    sender: str = SENDER,
    recipient: str = RECIPIENT,
) -> str:
    value = term.value
    if isinstance(value, datetime):
        values[name] = value
        return f"m.received_at < %({name})s::timestamptz"
    if isinstance(value, int):
        values[name] = value
        return f"m.size {'>' if term.field == 'larger' else '<'} %({name})s::bigint"
    if term.field == "unread":
        return "NOT m.is_read"
    if term.field == "attachment":
        return "s.has_attachments"
    if term.field == "tag":
        values[name] = storable(value)
        return f"lower(%({name})s::text) = ANY (lower(s.tags::text)::text[])"
    values[name] = sought(value)

    def held(text: str) -> str:
        return holds(text, name, value)

    if term.field == "subject":
        return held("s.subject")
    if term.field == "to":
        return f"{held(recipient)} OR {held(f'({IN_UNICODE})')}"
    # As it would stand in JSON: what is not there cannot be in the name.
    in_json = json.dumps(storable(value), ensure_ascii=False)[1:-1]
    values[f"{name}_json"] = sought(in_json)
    by_sender = f"""{held(sender)}
        OR CASE WHEN {holds(DETAILS, f"{name}_json", in_json)}
           THEN {held(f"relay.sender_of({DETAILS})")} END"""
    if term.field == "from":
        return by_sender
    return f"""{held("s.subject")}
        OR {held(recipient)}
        OR {held(f"({IN_UNICODE})")}
        OR {held(TEXT)}
        OR {by_sender}"""


_OF_MESSAGES = ("unread", "before", "larger", "smaller")
_CHEAP = ("unread", "attachment", "before", "larger", "smaller", "tag", "to", "subject", "from")


def _cost(term: Term) -> int:
    return _CHEAP.index(term.field) if term.field in _CHEAP else len(_CHEAP)
