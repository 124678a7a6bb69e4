"""What the judge says of blobs: what became of each, by what its pusher and its device saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf

from simulation.faults import BESIDE
from simulation.history import Answer, Blob, Delivery, History, Trouble, Visit
from simulation.places import DATABASE

SOON = 1.0
"""Virtual seconds in which a device that is there gets a blob, when nothing is wrong."""
_BEFORE = 60.0  # seconds for which nothing has to be wrong before: who waits for the store pauses
_HELD = 160.0  # seconds for which what was sent may be under way: the longest fault
_MOMENT = 1.0  # seconds on the way, when nothing is wrong
_NOT_NOTICED = 6.0  # seconds for which a relay may not notice that another server is the primary


def violations(history: History, now: float) -> list[str]:
    """Return a sentence for every promise about blobs that was broken."""
    found: list[str] = []
    for blob in history.blobs.values():
        found += _became(history, blob, now)
    found += [
        f"{marker}: nobody left it, and device{each.visit.device + 1} got it"
        for marker, seen in history.received.items()
        for each in seen
        if marker not in history.blobs
    ]
    return [*found, *_in_order(history), *_missed(history)]


def _became(history: History, blob: Blob, now: float) -> Iterator[str]:
    """What became of one blob."""
    marker, seen = blob.marker, history.received.get(blob.marker, [])
    if blob.answer is Answer.KEPT and not seen and blob.expires_at > now + history.apart:
        yield f"{marker}: acknowledged, and its device never got it"
    elif blob.answer is Answer.KEPT and _was_there(history, blob, seen):
        yield f"{marker}: acknowledged while its device was there, and not delivered soon"
    if blob.answer is Answer.REFUSED and seen:
        yield f"{marker}: refused, and its device got it"
    begins = blob.expires_at - blob.lives
    if (
        blob.answer is Answer.KEPT
        and blob.lives < inf
        and not blob.at - history.apart <= begins <= blob.answered_at + history.apart
    ):
        yield f"{marker}: was to live for {blob.lives:g} s, and ends at {blob.expires_at:.3f}"
    if len(numbers := {each.number for each in seen}) > 1:
        yield f"{marker}: was left once, and is there {len(numbers)} times"
    for each in seen:
        if each.visit.device != blob.device:
            yield f"{marker}: went to device{each.visit.device + 1}"
        if each.envelope != blob.envelope:
            yield f"{marker}: its device got other bytes than were left"
        if each.at > blob.expires_at + _MOMENT + history.apart and not _under_way(
            history, blob, each
        ):
            yield f"{marker}: came {each.at - blob.expires_at:.3f} s after its end"
    said, heard = history.acknowledged.get(marker, inf), history.heard.get(marker, inf)
    again = [each for each in seen if each.at > said + 0.1]
    if again and not history.troubled(said - 1.0, again[-1].at):
        yield f"{marker}: delivered after it was acknowledged, without excuse"
    elif any(each.at > heard and not _of_the_old(history, each) for each in seen):
        yield f"{marker}: came again after its device had learned that it is gone"


def _was_there(history: History, blob: Blob, seen: list[Delivery]) -> bool:
    """Whether the device was there when a blob was acknowledged, nothing was wrong, and it did not
    get it soon."""
    soon = blob.answered_at + SOON
    return (
        blob.expires_at > soon + history.apart
        and all(each.at > soon for each in seen)
        and any(
            visit.device == blob.device and visit.began + SOON <= blob.at and visit.ended > soon
            for visit in history.visits
        )
        and not history.troubled(blob.at - _BEFORE, soon, but=("clock", "peer"))
    )


def _holds(trouble: Trouble, visit: Visit) -> str:
    """Return what a trouble keeps on its way to a device: "page", "frame", or "" for nothing."""
    mine = trouble.node == visit.node
    if trouble.kind == "partition" and mine and trouble.party == f"device{visit.device + 1}":
        return "frame"
    if trouble.kind == "stall" or (trouble.kind == "partition" and mine):
        return "page" if trouble.kind == "stall" or trouble.party == DATABASE else ""
    return "page" if trouble.kind == "freeze" and mine else ""


def _under_way(history: History, blob: Blob, delivery: Delivery) -> bool:
    """Whether a blob that came after its end may have been on its way when that came: held from
    then on, and read by its node before that had lost sight of the database."""
    holds = [(each, what) for each in history.troubles if (what := _holds(each, delivery.visit))]
    reached = blob.expires_at
    while reached < delivery.at - _MOMENT - history.apart:
        ends = [
            each.ended
            for each, what in holds
            if each.began <= reached + _MOMENT + history.apart
            and each.ended > reached
            and (reached > blob.expires_at or what == "frame" or blob.at <= each.began + _MOMENT)
        ]
        if not ends:
            return False
        reached = max(ends)
    return True


def _of_the_old(history: History, delivery: Delivery) -> bool:
    """Whether a blob may have been read from a primary that lived on beside the one that was
    promoted."""
    return any(
        each.how == BESIDE and each.at_work(delivery.visit.began - _NOT_NOTICED, delivery.at)
        for each in history.troubles
    )


def _in_order(history: History) -> Iterator[str]:
    """In each session the oldest comes first, and each once; what was pushed in one session has the
    order in which it was pushed."""
    for visit in history.visits:
        for one, two in pairwise(visit.got):
            if two.number <= one.number:
                yield f"{two.marker}: came after {one.marker}, and is not younger"
    sessions: dict[tuple[str, int], list[Blob]] = defaultdict(list)
    for blob in history.blobs.values():
        if blob.session and blob.marker in history.received:
            sessions[blob.session, blob.device].append(blob)
    for pushed in sessions.values():
        for first, second in pairwise(pushed):
            if _number(history, second) < _number(history, first):
                yield f"{second.marker}: was pushed after {first.marker}, and came before it"


def _number(history: History, blob: Blob) -> int:
    return history.received[blob.marker][0].number


def _missed(history: History) -> Iterator[str]:
    """A device is told, once, how many blobs have expired undelivered."""
    for device in sorted({blob.device for blob in history.blobs.values()}):
        name = f"device{device + 1}"
        visits = [each for each in history.visits if each.device == device]
        # What was said in one that broke may not have arrived.
        broken = [
            each.ended
            for each in visits
            if not each.whole or history.troubled(each.began - _HELD, each.ended)
        ]
        since = max(broken, default=-inf)
        lost = [
            blob
            for blob in history.blobs.values()
            if blob.device == device
            and blob.answer is Answer.KEPT
            and blob.marker not in history.received
            and since < blob.expires_at
            and any(blob.expires_at + _MOMENT + history.apart < each.began for each in visits)
        ]
        told = sum(each.missed for each in visits if each.began > since)
        if len(lost) > told:
            yield f"{lost[0].marker}: expired, and its device was not told"
        counted = sum(
            each.missed for each in visits if not history.troubled(each.began - 1.0, each.ended)
        )
        brief = [
            blob
            for blob in history.blobs.values()
            if blob.device == device and blob.lives < inf and blob.answer is not Answer.REFUSED
        ]
        if counted > len(brief):
            yield f"{name}: was told that {counted} blobs have expired, and {len(brief)} were to"
