"""The judge of what readers were shown of mailboxes, and of what they deleted.

From the instant of its end, by the database's clock, nothing of a mailbox is shown; until then all
is that was promised.  What was deleted with 204 is gone, on every node and after every failover.
While an old primary lives beside the one that was promoted it may answer (docs/guarantees.md, "The
database is one"): that excuses who is shown what was deleted, or not what is there, and nothing
else.  Mail may be unparsed for a moment, or as long as a fault keeps it so: a wait may miss it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import inf

from simulation.history import Answer, History, Look, Mail, Mailbox

LARGE = 256 * 1024
"""Bytes above which a message is asked for room at the dot."""
_TRACE = 2000  # bytes that are put before a message at most
_PARSED = 1.0  # seconds, when nothing is wrong
_HELD_UP = 75.0  # seconds for which what is to be parsed may be in the hands of who is gone


def looks(history: History) -> list[str]:
    """Return a sentence for each look that showed too much, or too little."""
    found: list[str] = []
    boxes = {box.address: box for box in history.mailboxes}
    mails: dict[str, dict[str, Mail]] = defaultdict(dict)
    for mail in history.mail.values():
        mails[mail.address][mail.marker] = mail
    for look in history.looks:
        box, there = boxes[look.address], mails[look.address]
        found += _too_much(history, look, box, there)
        if not history.two_primaries(look.began, look.ended):
            found += _too_little(history, look, box, there)
    return found


def _too_much(history: History, look: Look, box: Mailbox, there: dict[str, Mail]) -> Iterator[str]:
    two = history.two_primaries(look.began, look.ended)
    if look.status in {200, 204}:
        if look.began > box.expires_at + history.apart:
            yield f"{look.address}: was over, and showed its mail ({_what(look)})"
        elif look.began > box.deleted_at and not two:
            yield f"{look.address}: was deleted, and showed its mail ({_what(look)})"
    for marker, times in Counter(look.shown).items():
        if times > 1 and marker:
            yield f"{marker}: was shown {times} times by one {look.of} of {look.address}"
        gone_at = there[marker].deleted_at if marker in there else inf
        if look.began > gone_at and not two:
            yield f"{marker}: was deleted, and shown at {look.ended:.3f} by a {look.of}"


def _too_little(
    history: History, look: Look, box: Mailbox, there: dict[str, Mail]
) -> Iterator[str]:
    """What was not shown though the mailbox lives: of who asks first that it be deleted, too."""
    first = look.judged and look.of in {"message", "mailbox"}
    lives_until = (
        box.expires_at - history.apart if look.of == "mailbox" and first else history.over_from(box)
    )
    if look.of == "over" or look.ended > lives_until:
        return
    kept = [
        mail
        for mail in there.values()
        if mail.answer is Answer.KEPT
        and mail.answered_at < look.began
        and (mail.deletion_asked > look.ended or (first and mail.marker == look.sought))
    ]
    if look.status == 404 and look.of != "message":
        yield f"{look.address}: lives, and was not found at {look.ended:.3f} ({look.of})"
    if look.status == 404 and look.of == "message" and look.sought in {m.marker for m in kept}:
        yield f"{look.sought}: is there, and was not found at {look.ended:.3f} to be deleted"
    if look.of == "list" and look.whole:
        missing = [mail.marker for mail in kept if mail.marker not in look.shown]
        if len(missing) > look.shown.count(""):
            yield f"{missing[0]}: is there, and a list does not show it at {look.ended:.3f}"
    if look.of == "wait" and look.status == 204 and look.judged:
        for mail in kept:
            if look.sought in {"", mail.marker} and _was_parsed(history, mail, look):
                yield f"{mail.marker}: is there, and a wait said at {look.ended:.3f} that none is"
                break


def _was_parsed(history: History, mail: Mail, look: Look) -> bool:
    """Whether a message can be read, when a look began at the latest."""
    if mail.parsed_at < look.began:
        # What was seen to be parsed may be lost with a primary, and is parsed again.
        since = [one for one in history.troubles if one.kind == "failover"]
        return not any(one.at_work(mail.parsed_at - 1.0, look.ended) for one in since)
    since_when = mail.answered_at - _HELD_UP
    return mail.answered_at + _PARSED < look.began and not history.troubled(
        since_when, look.ended, but=("clock", "peer")
    )


def _what(look: Look) -> str:
    return look.sought if look.of == "over" else look.of


def quotas(history: History) -> list[str]:
    """Return a sentence for each message that a mailbox took beyond its quota, or refused as beyond
    it, and it was not.

    What sessions had in hand at the same time may pass it, where it is small; what was deleted has
    made room by the answer.
    """
    found: list[str] = []
    quota = {box.address: box.quota for box in history.mailboxes if box.quota is not None}
    mails: dict[str, list[Mail]] = defaultdict(list)
    for mail in history.mail.values():
        if mail.address in quota:
            mails[mail.address].append(mail)
    for address, those in mails.items():
        most, most_bytes = quota[address]
        for mail in those:
            held = [one for one in those if one is not mail and _is_held(one, mail)]
            size = sum(len(one.raw) for one in held)
            large = len(mail.raw) if len(mail.raw) > LARGE else 1
            full = len(held) >= most or size + large > most_bytes
            two = history.two_primaries(mail.asked_at, mail.answered_at)
            if mail.answer is Answer.KEPT and full and not two:
                found.append(
                    f"{mail.marker}: 250 was said, and {address} held {len(held)} messages and"
                    f" {size} bytes"
                )
            may = [one for one in those if one is not mail and _may_be_held(one, mail)]
            size = sum(len(one.raw) + _TRACE for one in may)
            room = len(may) < most and size + len(mail.raw) + _TRACE <= most_bytes
            if mail.full and room and not two:
                found.append(
                    f"{mail.marker}: was refused, and {address} held {len(may)} messages and"
                    f" {size} bytes at most"
                )
    return found


def _is_held(one: Mail, mail: Mail) -> bool:
    """Whether a message was certainly there when another was handed in."""
    return (
        one.answer is Answer.KEPT
        and one.answered_at < mail.asked_at
        and one.deletion_asked > mail.answered_at
    )


def _may_be_held(one: Mail, mail: Mail) -> bool:
    """Whether a message may have been there when another was refused."""
    return (
        one.answer is not Answer.REFUSED
        and one.asked_at < mail.answered_at
        and one.deleted_at > mail.asked_at
    )
