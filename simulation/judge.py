"""The judge: whether every promise in the history was kept.

It looks when the faults are over and the relay has had its time: first whether everything has come
to rest (`unsettled`), then at the database, the mail that came out and what devices got
(`violations`).  Each violation is a sentence with the marker of what it happened to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from simulation import judge_devices, judge_letters, judge_mailboxes
from simulation.around.dns import DANE
from simulation.database import Database
from simulation.history import BOUNCES, SUPPRESS, Answer, Copy, History, Post, Reported
from simulation.keys import OWN
from simulation.network import Network
from simulation.places import NOBODY, SERVERS
from simulation.world import EPOCH

_ACTIVATION, _RECOVERY = "Activate your account", "Recover your password"
_HAS_WAITED = 9.0  # seconds, of ten
_REFUSED = {"bounced", "failed"}
_SUPPRESSED = "cancelled for a recipient who is suppressed"
_REUSED = 409  # what is said to another text with the same key
_UNAVAILABLE = 500
_MOMENT = 3.0  # seconds that are no matter of order
_OLD = 75.0  # seconds by which what is known of keys may be late
_SOON = 1.0  # seconds between what a post reads and the post
_POST_LASTS = 15.0  # seconds for which an answer to a post is waited for
_LOCKED = 160.0  # seconds for which who was stopped may have kept a token locked

GIVEN_UP_AFTER = 900.0
"""Virtual seconds after which a node has closed each connection whose peer vanished."""

SETTLES_WITHIN = 3600.0
"""Virtual seconds, without faults, after which everything has come to rest."""


def unsettled(database: Database, since: float, lease: float) -> dict[str, int]:
    """Return what has not come to rest yet, and how much of it.

    Whoever closes mailboxes has renewed its lease (of so many seconds) `since` then: what lasts may
    be that of a node that was killed.
    """
    (row,) = database.query(
        """
        SELECT (SELECT count(*) FROM relay.outbound_due WHERE isfinite(run_at)),
               (SELECT count(*) FROM relay.unsummarised),
               (SELECT count(*) FROM relay.token_queue q
                WHERE q.ready AND q.expires_at > extract(epoch FROM sim.now())),
               (SELECT count(*) FROM relay.device_inbox WHERE expires_at > sim.now()),
               (SELECT count(*) FROM relay.device_inboxes),
               (SELECT count(*) FROM relay.webhook_events WHERE given_up_at IS NULL),
               (SELECT count(*) FROM relay.returns),
               (SELECT count(*) FROM relay.outbound_notices WHERE action = 'failed'),
               (SELECT count(*) FROM relay.mailboxes
                WHERE is_active AND expires_at < sim.now() - interval '2 minutes'),
               (SELECT 1 - count(*) FROM relay.leases
                WHERE name = 'ticker' AND expires_at > to_timestamp(%s))
        """,
        [EPOCH + since + lease],
    )
    names = (
        *("outbound", "unsummarised", "tokens", "blobs", "inboxes", "webhooks", "returns"),
        "submitters to be told",
        *("mailboxes open after their end", "ticker missing"),
    )
    return {name: count for name, count in zip(names, row, strict=True) if count}


def violations(database: Database, history: History, now: float, rate: float | None) -> list[str]:
    """Return a sentence for every promise that was broken.

    `now`: virtual seconds.  `rate`: letters a second that the budget pays for; None: there is none.
    """
    return [
        *_mail(database, history, now),
        *_expiry(database),
        *_outbound(database, history),
        *_wishes(history),
        *_suppressed(database, history),
        *_reports(database, history),
        *_came_back(database, history),
        *_signed(history),
        *_secured(history),
        *judge_letters.violations(database, history),
        *_budget(database, rate),
        *judge_devices.violations(history, now),
        *_told(history, now),
        *_posts(history),
        *judge_mailboxes.looks(history),
        *judge_mailboxes.quotas(history),
        *history.late,
    ]


def half_open(network: Network, hosts: Sequence[str], now: float) -> list[str]:
    """Return a sentence for each connection that a node holds although its peer is long gone."""
    return [
        f"{host}: holds a connection with {other}, which vanished over {GIVEN_UP_AFTER:g} s ago"
        for host, other in network.held(hosts, now - GIVEN_UP_AFTER)
    ]


def names(database: Database, history: History, what: str) -> set[str]:
    """Return by what the trace names what a promise is about: its marker, its address, its id."""
    if not what:
        return set()
    # Of a message to several, what is told of all of them together.
    marker, _, recipient = what.partition("/")
    found = {*filter(None, (marker, recipient)), *history.ids.get(marker, ())}
    rows = database.query(
        """
        SELECT m.id::text
        FROM relay.messages m
        WHERE position(convert_to('Subject: ' || %(what)s || E'\\r', 'UTF8') IN m.raw_email) > 0
        UNION ALL
        SELECT o.id::text
        FROM relay.outbound_messages o
        WHERE o.subject = %(what)s OR o.recipient = %(what)s
        """,
        {"what": marker},
    )
    return found | {row[0] for row in rows}


def is_open(database: Database, address: str) -> bool:
    """Whether a mailbox is marked as one that takes mail."""
    database.tick()
    return bool(
        database.query("SELECT FROM relay.mailboxes WHERE address = %s AND is_active", [address])
    )


def _mail(database: Database, history: History, now: float) -> list[str]:
    found: list[str] = []
    stored: dict[str, list[tuple[str, bytes, bool, float]]] = defaultdict(list)
    for address, marker, raw, summarised, at in database.query(
        """
        SELECT b.address, substring(encode(m.raw_email, 'escape') FROM 'Subject: (M-in-[0-9]+)'),
               m.raw_email, EXISTS (SELECT FROM relay.summaries s WHERE s.message_id = m.id),
               extract(epoch FROM m.received_at)::float8
        FROM relay.messages m
        JOIN relay.mailboxes b ON b.id = m.mailbox_id
        ORDER BY m.id
        """
    ):
        stored[marker].append((address, bytes(raw), summarised, at - EPOCH))
    rows = database.query("SELECT address, is_active FROM relay.mailboxes")
    there, active = {row[0] for row in rows}, {row[0] for row in rows if row[1]}
    meant = {(mail.marker, mail.address) for mail in history.mail.values()}
    found += [
        f"{box.address}: 201 was said, and there is no mailbox"
        for box in history.mailboxes
        if history.over_from(box) > now and box.address not in there
    ]
    found += [
        f"{box.address}: was deleted, and is there"
        for box in history.mailboxes
        if box.deleted_at < inf and box.address in active
    ]
    ends = {box.address: history.over_from(box) for box in history.mailboxes}
    over = {box.address: history.over_at(box) for box in history.mailboxes}
    deleted = {box.address: box.deleted_at for box in history.mailboxes}
    for mail in history.mail.values():
        copies = [each for each in stored[mail.marker] if each[0] == mail.address]
        missed = mail.together and ends.get(mail.address, 0.0) <= mail.answered_at
        missed |= mail.deletion_asked < inf
        if mail.answer is Answer.KEPT and not copies and mail.address in there and not missed:
            found.append(f"{mail.marker}: 250 was said, and it is not there")
        if mail.deleted_at < inf and copies:
            found.append(f"{mail.marker}: was deleted, and it is there")
        two = history.two_primaries(mail.asked_at, mail.answered_at)
        if mail.welcome and mail.asked_at > over.get(mail.address, inf) and not two:
            found.append(f"{mail.marker}: 250 was said to {mail.address}, which was over")
        if mail.welcome and NOBODY in mail.address:
            found.append(f"{mail.marker}: 250 was said to {mail.address}, and that is nobody")
        if mail.for_good and ends.get(mail.address, 0.0) > mail.answered_at:
            found.append(f"{mail.marker}: refused for good, and its mailbox takes mail")
        if mail.answer is Answer.REFUSED and copies:
            found.append(f"{mail.marker}: refused, and it is there")
        if len(copies) > 1:
            found.append(f"{mail.marker}: handed in once, and there {len(copies)} times")
        for _, raw, summarised, at in copies:
            if at > deleted.get(mail.address, inf) + history.apart:
                found.append(f"{mail.marker}: was stored after its mailbox was deleted")
            if not raw.endswith(mail.raw):
                found.append(f"{mail.marker}: stored are other bytes than were sent")
            if not summarised:
                found.append(f"{mail.marker}: never summarised")
    sent = {marker for marker, _ in meant}
    for marker, copies in stored.items():
        if marker not in sent:
            found.append(f"{marker}: nobody sent it, and it is there")
        elif astray := [each[0] for each in copies if (marker, each[0]) not in meant]:
            found.append(f"{marker}: in the mailbox {astray[0]}")
    return found


def _expiry(database: Database) -> list[str]:
    late = database.query(
        """
        SELECT b.address, extract(epoch FROM m.received_at - b.expires_at)::float8
        FROM relay.messages m
        JOIN relay.mailboxes b ON b.id = m.mailbox_id
        WHERE m.received_at >= b.expires_at
        ORDER BY 1
        """
    )
    read = database.query("SELECT address, by FROM sim.read_late ORDER BY 1, 2")
    return [
        *(f"{address}: took mail {by:.6f} s after its end" for address, by in late),
        *(f"{address}: its mail was read {by:.6f} s after its end" for address, by in read),
    ]


def _outbound(database: Database, history: History) -> list[str]:
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
    lost = {
        f"{subject}/{recipient}"
        for subject, recipient in database.query(
            """
            SELECT o.subject, o.recipient
            FROM relay.outbound_messages o
            JOIN relay.outbound_tries t ON t.message_id = o.id
            WHERE o.status = 'held'
              AND t.outcome = 'lost'
            """
        )
    }
    # Nobody knew, behind the dot, whether it was taken, and it is held for that.
    doubtful = {
        f"{subject}/{recipient}"
        for subject, recipient in database.query(
            """
            SELECT o.subject, o.recipient
            FROM relay.outbound_messages o
            JOIN relay.outbound_tries t ON t.message_id = o.id
            WHERE o.status = 'held'
              AND t.outcome = 'held'
              AND t.phase = 'dot'
              AND t.code IS NULL
            """
        )
    }
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


def _wishes(history: History) -> list[str]:
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


def _suppressed(database: Database, history: History) -> list[str]:
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


def _reports(database: Database, history: History) -> list[str]:
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


def _came_back(database: Database, history: History) -> list[str]:
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


def _signed(history: History) -> list[str]:
    """What leaves of the relay's domain has the signatures of the keys that sign."""
    return [
        f"{copy.marker or copy.letter}: was signed by {copy.selectors} at {copy.at:.3f} for"
        f" {copy.recipient}, and not by the keys that sign"
        for copy in history.copies
        if copy.selectors is not None
        and not history.troubled(copy.at - _LOCKED, copy.at)
        and not {copy.selectors, None} & history.may_sign(copy.at - _OLD, copy.at + _OLD)
    ]


def _secured(history: History) -> list[str]:
    """Mail for a domain whose DNS names a key goes to nobody without it, whatever goes wrong."""
    return [
        f"{copy.marker}/{copy.recipient}: went to {copy.server} at {copy.at:.3f}"
        f" {'by a key that its domain does not name' if copy.key else 'in clear'}"
        for copy in history.copies
        if copy.recipient.partition("@")[2] in DANE
        and copy.server != SERVERS[0]
        and copy.key != OWN
    ]


def _budget(database: Database, rate: float | None) -> list[str]:
    """At no time had more letters gone out than the budget had paid for."""
    if rate is None:
        return []
    rows = database.query(
        "SELECT recipient, extract(epoch FROM created_at)::float8"
        " FROM relay.outbound_messages WHERE subject IN (%s, %s) ORDER BY created_at, id",
        [_ACTIVATION, _RECOVERY],
    )
    return [
        f"{recipient}: is letter {number}, and the budget paid for {paid:.1f} by then"
        for number, (recipient, at) in enumerate(rows, 1)
        if number > (paid := 1.0 + rate * (at - EPOCH + _MOMENT))
    ][:1]


def _told(history: History, now: float) -> list[str]:
    tells = {box.address for box in history.mailboxes if box.tells and history.over_from(box) > now}
    return [
        f"{mail.marker}: arrived, and nobody was told"
        for mail in history.mail.values()
        if mail.answer is Answer.KEPT
        and mail.address in tells
        and mail.deletion_asked == inf
        and f"{mail.marker}/{mail.address}" not in history.told
    ]


def _posts(history: History) -> list[str]:
    """Of each message there is one event, told once; an event has one id, and a signature."""
    found: list[str] = []
    over = {box.address: history.over_at(box) for box in history.mailboxes}
    gone = {
        f"{mail.marker}/{mail.address}": min(mail.deleted_at, over.get(mail.address, inf))
        for mail in history.mail.values()
    }
    events: dict[str, list[Post]] = defaultdict(list)
    for post in history.posts:
        what = f"{post.marker}/{post.mailbox}"
        events[what].append(post)
        if what not in gone:
            found.append(f"{what}: nobody sent it, and it was told of")
        if not post.named:
            found.append(f"{what}: was told of with another id than its event's")
        if not post.signed:
            found.append(f"{what}: was told of, and not signed")
        end = gone.get(what, inf)
        if post.at > end + _SOON and not history.troubled(end - _SOON, post.at, but=("clock",)):
            found.append(f"{what}: was told of {post.at - end:.3f} s after its end")
    for what, posts in events.items():
        if len({post.event for post in posts}) > 1:
            found.append(f"{what}: was told of by more than one event")
        for one, two in pairwise(sorted(posts, key=lambda post: post.at)):
            said = f"posted at {one.at:.3f} by {one.node} and again at {two.at:.3f} by {two.node}"
            if one.told_at is not None and one.told_at <= two.at:
                if not history.may_post_again(one, two):
                    found.append(f"{what}: {said}, though it was told, without excuse")
                continue
            both = two.at < min(one.ended_at, one.at + _POST_LASTS)
            if both and not history.may_post_both(one, two):
                found.append(f"{what}: {said}, both under way, without excuse")
    return found
