"""What a relay's answers look like: what is otherwise was said by no relay.

A shape is a function that tells whether a value has it.  Only what this client reads is looked at,
so a relay may say more than its clients know.  The TypeScript client has the same in answers.ts.
"""

from __future__ import annotations

import re
from typing import Any, Callable, cast

from relay_client._records import parsed_time

Shape = Callable[[Any], bool]

_TOKEN = re.compile("[!-~]+")
_ID = re.compile(r"[0-9a-zA-Z-]{1,64}")
# No blank, no control character, no half of a character.
_ADDRESS = re.compile(
    r"[^\x00-\x20\x7f-\xa0\ud800-\udfff]{1,256}@[^@\x00-\x20\x7f-\xa0\ud800-\udfff]{1,255}"
)
_PLACE = re.compile(
    r"(?:\[[0-9a-fA-F:.%]{2,64}\]|[^\x00-\x20\x7f-\xa0\ud800-\udfff\[\]:/@]{1,255}):([0-9]{1,5})"
)
_MAX_LINKS = 1000  # of a message; a relay lists 200
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _maybe(shape: Shape) -> Shape:
    """Return the shape of what is so, or null."""
    return lambda value: value is None or shape(value)


def _number(value: Any) -> bool:
    # Beyond these JavaScript reads another number than is written.
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and -(2**53) < value < 2**53
    )


def _count(value: Any) -> bool:
    return _number(value) and isinstance(value, int) and value >= 0


def _id(value: Any) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _address(value: Any) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _place(value: Any) -> bool:
    """Whether it is host:port."""
    found = _PLACE.fullmatch(value) if isinstance(value, str) else None
    return found is not None and int(found[1]) <= 65535


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def is_token(value: Any) -> bool:
    """Whether a value is a token, as a header can carry it: no blank is in one."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def is_key(token: str | None) -> bool:
    """Whether a token is an API key's, and so not the administrator's."""
    return token is not None and token.startswith("rk_")


def _time(value: Any) -> bool:
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        return False
    try:
        parsed_time(value)
    except ValueError:
        return False
    return True


def _fields(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(one, str) or (_texts(one) and one != [])
        for one in cast("dict[str, Any]", value).values()
    )


def _every(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, cast("list[object]", value)))


def _record(**shapes: Shape) -> Shape:
    def has(value: Any) -> bool:
        return isinstance(value, dict) and all(
            name in value and shape(value[name]) for name, shape in shapes.items()
        )

    return has


_texts = _every(_text)


def _links(value: Any) -> bool:
    # Each costs time where one is looked for, and of empty ones a page of 32 MiB has 11 million.
    return (
        isinstance(value, list) and len(cast("list[object]", value)) <= _MAX_LINKS and _texts(value)
    )


INBOX = _record(address=_address, session_token=_maybe(is_token), expires_at=_time)

_ENTRY = _record(id=_id, from_address=_maybe(_text), subject=_maybe(_text), received_at=_time)
LIST = _every(_ENTRY)

REJECTED = _every(_record(address=_text, reply=_text))

CAPTURED = _every(_record(address=_text, count=_count))

MESSAGE = _record(
    id=_id,
    from_address=_maybe(_text),
    to=_text,
    subject=_maybe(_text),
    received_at=_time,
    size=_count,
    body_text=_maybe(_text),
    body_html=_maybe(_text),
    otp=_maybe(_text),
    links=_links,
    headers=_fields,
    attachments=_every(
        _record(
            index=_count,
            filename=_maybe(_text),
            content_type=_text,
            size=_count,
            content_id=_maybe(_text),
        )
    ),
)


MESSAGES = _every(MESSAGE)

MESSAGE_OR_NONE = _maybe(MESSAGE)
_CHECK = _record(result=_text, detail=_text)
CHECKS = _record(
    spf=_CHECK,
    dkim=_CHECK,
    dmarc=_CHECK,
    score=_number,
    reasons=_texts,
    findings=_every(_record(id=_text, severity=_text, text=_text)),
)

SENT = _record(messages=_every(_record(id=_id, recipient=_maybe(_text))))

OUTBOUND = _record(
    id=_id,
    sender=_maybe(_text),
    recipient=_maybe(_text),
    subject=_maybe(_text),
    status=_text,
    attempts=_count,
    next_retry_at=_maybe(_time),
    sent_at=_maybe(_time),
    priority=_text,
    error=_maybe(_text),
    created_at=_time,
    not_after=_maybe(_time),
    tag=_maybe(_text),
    peer=_maybe(_text),
    tls=_maybe(_text),
    reply=_maybe(_text),
)

INFO = _record(
    version=_text,
    smtp=_maybe(_place),
    submission=_maybe(_place),
    domains=_texts,
    capture=_truth,
    starttls=_truth,
    public_url=_text,
)
