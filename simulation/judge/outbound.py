"""Mail that goes out: sent once, as it was asked for, signed and secured; what comes back of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from math import inf

from simulation.around.dns import DANE
from simulation.database import Database
from simulation.history import BOUNCES, SUPPRESS, Answer, Copy, History, Reported
from simulation.keys import OWN
from simulation.places import SERVERS
from simulation.world import EPOCH

_REFUSED = {"bounced", "failed"}
_SUPPRESSED = "cancelled for a recipient who is suppressed"
_REUSED = 409  # what is said to another text with the same key
_UNAVAILABLE = 500
_OLD = 75.0  # seconds by which what is known of keys may be late
_LOCKED = 160.0  # seconds for which who was stopped may have kept a token locked


def sent(database: Database, history: History) -> list[str]:
    found: list[str] = []
    rows = database.query(
        "SELECT subject, recipient, status, id, error_log FROM relay.outbound_messages ORDER BY id"
    )
    states: dict[str, list[str]] = defaultdict(list)
    ids: Counter[str] = Counter(str(row[3]) for row in rows)
    suppressed = {row[0] for row in database.query("SELECT address FROM relay.suppressions")}
    for subject, recipient, status, _, error in rows:
        is_so = status == "cancelled" and error == "suppressed" and recipient in suppressed
        states[f"{subject}/{recipient}"].append(_SUPPRESSED if is_so else status)
    found += [f"{id_}: is in the queue {n} times" for id_, n in ids.items() if n > 1]
    # What was lost too often is set aside for somebody to look at: leases, not deliveries.
    lost = _held(database, "t.outcome = 'lost'")
    # Nobody knew, behind the dot, whether it was taken, and it is held for that.
    doubtful = _held(database, "t.outcome = 'held' AND t.phase = 'dot' AND t.code IS NULL")
    holds = {marker for marker, wish in history.wishes.items() if wish.holds}
    copies: dict[str, list[Copy]] = defaultdict(list)
    for copy in history.copies:
        what = f"{copy.marker}/{copy.recipient}"
        # Letters, and reports to submitters of what was sent, have no name but their Message-ID.
        copies[what if what in history.sends else f"{copy.recipient} {copy.letter}"].append(copy)
    for marker, answer in history.sends.items():
        seen = copies[marker]
        status = states.get(marker, [])
        if answer is Answer.KEPT and not status:
            found.append(f"{marker}: 202 was said, and it is not in the queue")
        if answer is Answer.REFUSED and status:
            found.append(f"{marker}: refused, and it is in the queue")
        if len(status) > 1:
            found.append(f"{marker}: sent once, and queued {len(status)} times")
        if status == ["sent"] and not seen:
            found.append(f"{marker}: said to be sent, and nobody got it")
        recipient = marker.partition("/")[2]
        came_back = history.reported(marker.partition("/")[0], recipient)
        if status == ["bounced"] and any(came_back.get(what) == Answer.KEPT for what in BOUNCES):
            continue
        if len(status) == 1 and status[0] in _REFUSED and history.refused(recipient):
            if (took := history.overruled(seen, recipient)) is not None:
                found.append(
                    f"{marker}: a server took it at {took.at:.3f} from {took.node}, nobody refused"
                    f" it after that, and in the end it is {status[0]}"
                )
        elif status == ["held"]:
            in_doubt = marker in doubtful and marker.partition("/")[0] in holds
            if marker not in lost and not in_doubt:
                found.append(f"{marker}: held, and nobody had vanished with it")
        elif answer is Answer.KEPT and status and status[0] not in {"sent", _SUPPRESSED}:
            found.append(f"{marker}: accepted, and in the end {status[0]}")
        if not all(copy.whole for copy in seen):
            found.append(f"{marker}: a server got another text than was written")
    for what, seen in copies.items():
        for one, two in pairwise(sorted(seen, key=lambda copy: copy.at)):
            if what.partition("/")[0] in holds:
                found.append(f"{what}: was to be held, and was sent again at {two.at:.3f}")
            elif not history.excused(one, two):
                found.append(
                    f"{what}: sent at {one.at:.3f} by {one.node} and again at {two.at:.3f} "
                    f"by {two.node}, without excuse"
                )
    return found


def _held(database: Database, after: str) -> set[str]:
    """Return what is held after such a try."""
    rows = database.query(
        f"""
        SELECT o.subject, o.recipient
        FROM relay.outbound_messages o
        JOIN relay.outbound_tries t ON t.message_id = o.id
        WHERE o.status = 'held'
          AND {after}
        """  # noqa: S608 - ours
    )
    return {f"{subject}/{recipient}" for subject, recipient in rows}


def wishes(history: History) -> list[str]:
    """What programs asked for besides the message: one set of messages for a key, and an instant
    before which nobody is to have them."""
    found: list[str] = []
    for marker, wish in history.wishes.items():
        if len(wish.ids) > 1:
            found.append(f"{marker}: was asked for with one key, and is {len(wish.ids)} messages")
        first = wish.said.index(Answer.KEPT) if Answer.KEPT in wish.said else len(wish.said)
        if Answer.REFUSED in wish.said[first:]:
            found.append(f"{marker}: 202 was said, and it was refused when asked for again")
        found += [
            f"{marker}: to another text with its key {status} was said"
            for status in wish.other
            if status != _REUSED and 0 < status < _UNAVAILABLE
        ]
    for copy in history.copies:
        at = history.wishes[copy.marker].send_at if copy.marker in history.wishes else 0.0
        if copy.at < at - history.apart:
            found.append(
                f"{copy.marker}/{copy.recipient}: was sent at {copy.at:.3f}, and was for {at:.3f}"
            )
    return found


def suppressed(database: Database, history: History) -> list[str]:
    """What was queued, or was due, when its recipient was known to be suppressed goes nowhere.

    It was known once the relay had said so, or no transaction can have lasted for as long.
    """
    since: dict[str, float] = {}
    for address, made in database.query(
        "SELECT address, extract(epoch FROM created_at)::float8 FROM relay.suppressions"
    ):
        told, made = history.suppressed.get(address, inf), made - EPOCH + history.apart
        # What was said before was lost with its server, and came again.
        since[address] = min(told if told > made else inf, made + _LOCKED)
    found: list[str] = []
    for what, answer in history.sends.items():
        marker, _, recipient = what.partition("/")
        asked_at = history.wishes[marker].asked_at if marker in history.wishes else 0.0
        if answer is Answer.KEPT and asked_at > since.get(recipient, inf):
            found.append(f"{what}: 202 was said, and its recipient was suppressed")
    for copy in history.copies:
        at = since.get(copy.recipient, inf)
        due = history.wishes[copy.marker].send_at if copy.marker in history.wishes else 0.0
        if due - history.apart > at:
            found.append(
                f"{copy.marker}/{copy.recipient}: was sent at {copy.at:.3f}, and its recipient was"
                " suppressed before it was due"
            )
    return found


def reports(database: Database, history: History) -> list[str]:
    """Who submitted mail is told once of each recipient who does not get it, and of no other."""
    told: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for copy in history.copies:
        if copy.recipient == history.submitters.get(copy.marker):
            for recipient in copy.failed:
                told[copy.marker, recipient][copy.letter] = None
    found: list[str] = []
    for marker, recipient, status in database.query(
        "SELECT subject, recipient, status FROM relay.outbound_messages ORDER BY id"
    ):
        submitter = history.submitters.get(marker)
        times = len(told[marker, recipient])
        ended = status in {*_REFUSED, "cancelled"}
        if submitter is None:
            continue
        if ended and not times and not history.refused(submitter):
            found.append(f"{marker}/{recipient}: was refused, and its submitter was not told")
        if not ended and times:
            found.append(f"{marker}/{recipient}: its submitter was told that it failed: {status}")
        if times > 1:
            found.append(f"{marker}/{recipient}: its submitter was told {times} times")
    return found


def came_back(database: Database, history: History) -> list[str]:
    """What servers reported is the truth; what others say is not."""
    found: list[str] = []
    states = {
        (subject, recipient): status
        for subject, recipient, status in database.query(
            "SELECT subject, recipient, status FROM relay.outbound_messages"
        )
    }
    suppressed = {row[0] for row in database.query("SELECT address FROM relay.suppressions")}
    for report in history.reports:
        what = f"{report.marker}/{report.recipient}"
        if report.what is Reported.FORGED:
            if report.answer is Answer.KEPT:
                found.append(f"{what}: 250 was said to a forged report")
            continue
        if report.answer is not Answer.KEPT:
            found.append(f"{what}: its server's report ({report.what}) was refused")
        # Refused as well, or nobody knows what its last attempt came to: that counts.
        state = states.get((report.marker, report.recipient))
        if history.refused(report.recipient) or state == "held":
            continue
        if report.what in BOUNCES and state != "bounced":
            found.append(f"{what}: its server reported that it bounced, and it is {state}")
        if report.what in SUPPRESS and report.recipient not in suppressed:
            found.append(f"{what}: a report of it ({report.what}) suppressed nobody")
    may_be = {report.recipient for report in history.reports if report.what in SUPPRESS}
    found += [f"{address}: is suppressed, and nobody said why" for address in suppressed - may_be]
    return sorted(found)


def signed(history: History) -> list[str]:
    """What leaves of the relay's domain has the signatures of the keys that sign."""
    return [
        f"{copy.marker or copy.letter}: was signed by {copy.selectors} at {copy.at:.3f} for"
        f" {copy.recipient}, and not by the keys that sign"
        for copy in history.copies
        if copy.selectors is not None
        and not history.troubled(copy.at - _LOCKED, copy.at)
        and not {copy.selectors, None} & history.may_sign(copy.at - _OLD, copy.at + _OLD)
    ]


def secured(history: History) -> list[str]:
    """Mail for a domain whose DNS names a key goes to nobody without it, whatever goes wrong."""
    return [
        f"{copy.marker}/{copy.recipient}: went to {copy.server} at {copy.at:.3f}"
        f" {'by a key that its domain does not name' if copy.key else 'in clear'}"
        for copy in history.copies
        if copy.recipient.partition("@")[2] in DANE
        and copy.server != SERVERS[0]
        and copy.key != OWN
    ]
