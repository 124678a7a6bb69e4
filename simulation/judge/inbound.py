"""Mail that came in: what was accepted is there once, as it was sent, and nothing else is; nothing
is taken after a mailbox's end.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf

from simulation.database import Database
from simulation.history import Answer, History
from simulation.places import NOBODY
from simulation.world import EPOCH


def stored(database: Database, history: History, now: float) -> list[str]:
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


def expiry(database: Database) -> list[str]:
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
