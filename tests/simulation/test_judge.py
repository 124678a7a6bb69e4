"""What the judge says, and of what: for each sentence the smallest history of which it is said, and
its neighbours, of which it is not.

What was kept stands in a database, which has the relay's own schema; its rows are made by hand.
"""

import ast
import base64
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid4, uuid5

import psycopg
import pytest
import trio

from simulation import judge
from simulation.faults import BESIDE
from simulation.history import (
    ACTIVATION,
    RECOVERY,
    Answer,
    Blob,
    Click,
    Copy,
    Delivery,
    History,
    Letter,
    Look,
    Mail,
    Mailbox,
    Post,
    Refusal,
    Report,
    Reported,
    Suspension,
    Trouble,
    Visit,
    Wish,
)
from simulation.judge import devices, inbound, letters, mailboxes, outbound, webhooks
from simulation.keys import ANOTHER, OWN
from simulation.network import Network
from simulation.places import HOOKS, NOBODY
from simulation.world import EPOCH, NODE, World
from tests.conftest import TEMPLATE, Clusters

NOW = 1000.0
"""The virtual second at which the judge looks."""
KEPT, REFUSED, DOUBT = Answer.KEPT, Answer.REFUSED, Answer.DOUBT
BOX, OTHER = "box@relay.example", "other@relay.example"
TO, SECURED = "a@one.example", "a@two.example"
OUT = f"M-out-1/{TO}"
ANN, BOB = "ann@people.example", "bob@people.example"
ACTIVATE, RECOVER = "Activate your account", "Recover your password"
SUBMITTER = "s@sender.example"
RAW = b"Subject: M-in-1\r\n\r\nHello.\r\n"

Row = tuple[str, dict[str, Any]]
"""A table of the schema `relay`, and the columns that matter."""
Seen = tuple[tuple[Row, ...], History]
"""What is stored, and what was said and seen."""


def at(second: float) -> datetime:
    """A virtual second as an instant."""
    return datetime.fromtimestamp(EPOCH + second, UTC)


# ------------------------------------------------------------------------------- what may be stored


def box(address: str = BOX) -> Row:
    """A mailbox, until 2000."""
    values = {"id": uuid5(NAMESPACE_DNS, address), "address": address, "expires_at": at(2000.0)}
    return "mailboxes", values


def message(raw: bytes = RAW, to: str = BOX, when: float = 100.0, number: int = 1) -> Row:
    """A message in a mailbox."""
    ids = {"id": UUID(int=number), "mailbox_id": uuid5(NAMESPACE_DNS, to)}
    return "messages", {**ids, "raw_email": raw, "received_at": at(when)}


def summary(number: int = 1) -> Row:
    """That a message was summarised."""
    return "summaries", {"message_id": UUID(int=number), "mailbox_id": uuid4()}


ARRIVED = (box(), message(), summary())


def queued(
    status: str = "sent",
    subject: str = "M-out-1",
    to: str = TO,
    when: float = 100.0,
    number: int = 0,
    error: str | None = None,
) -> Row:
    """A message in the queue, or done with."""
    id_ = UUID(int=number) if number else uuid4()
    values = {"subject": subject, "recipient": to, "status": status, "created_at": at(when)}
    return "outbound_messages", {"id": id_, "error_log": error, **values}


def tried(number: int, outcome: str, phase: str = "dot", code: int | None = None) -> Row:
    """An attempt to deliver a message."""
    values = {"at": at(100.0), "attempt": 1, "outcome": outcome, "phase": phase, "code": code}
    return "outbound_tries", {"message_id": UUID(int=number), **values}


def letter(
    subject: str = ACTIVATE, to: str = ANN, when: float = 100.0, number: int = 0, **more: Any
) -> Row:
    """A letter to who has an account, and when its token was taken."""
    return queued(more.get("status", "sent"), subject, to, when, number)


def of_token(number: int, letter: int) -> Row:
    """Of which token a letter in the queue is."""
    ids = {"id": UUID(int=letter), "content_id": uuid4(), "owner": uuid4(), "token": number}
    to = {"recipient": ANN, "address": ANN, "domain": "people.example", "priority": 1}
    return "outbound_letters", {**ids, **to}


def account(email: str = ANN, number: int = 1, status: str = "provisioned") -> Row:
    """An account."""
    return "accounts", {"id": number, "email": email, "login": email, "status": status}


def token(number: int, when: int, action: str = ACTIVATION, account: int = 1, **more: Any) -> Row:
    """A token, and when it was made."""
    values = {"id": number, "account": account, "action": action, "created_at": EPOCH + when}
    secret = {"secret": bytes([number]) * 32, "code": "00001", "expires_at": EPOCH + when + 900}
    return "tokens", {**values, **secret, **more}


def signed_up(status: str = "provisioned", letter_is: str = "sent", **more: Any) -> tuple[Row, ...]:
    """An account, its token (until 950), and that one's letter in the queue."""
    made = token(1, 50, **more)
    return account(status=status), made, letter(number=9, status=letter_is), of_token(1, 9)


def recovering(**more: Any) -> tuple[Row, ...]:
    """An active account, and a recovery with its letter."""
    used = token(1, 50, consumed_at=EPOCH + 60)
    asked = token(2, 50, RECOVERY, **more)
    return account(status="active"), used, asked, letter(RECOVER, number=8), of_token(2, 8)


def suppressed(address: str = TO, when: float = 50.0) -> Row:
    """An address that gets no mail."""
    return "suppressions", {"address": address, "created_at": at(when)}


# --------------------------------------------------------------------------------- what may be seen


def mail(answer: Answer, to: str = BOX, **more: Any) -> dict[str, Mail]:
    """A message that was handed in."""
    return {f"M-in-1/{to}": Mail("M-in-1", to, RAW, answer=answer, answered_at=NOW, **more)}


def copy(when: float = 100.0, node: str = "n1", to: str = TO, **more: Any) -> Copy:
    """What a server took."""
    return Copy("M-out-1", to, when, node=node, **more)


def post(when: float = 100.0, node: str = "n1", event: str = "e1", **more: Any) -> Post:
    """A post of a webhook, which its receiver answered 2xx a tenth of a second later."""
    return Post(event, "M-in-1", BOX, when, node, **{"told_at": when + 0.1} | more)


def told_of(letter: str, *failed: str) -> Copy:
    """A report that a submitter got."""
    return copy(to=SUBMITTER, letter=letter, failed=failed or (TO,))


def wish(when: float = 100.0, *said: Answer, **more: Any) -> dict[str, Wish]:
    """What a program asked for, and when."""
    return {"M-out-1": Wish(when, said=list(said), **more)}


def came(number: int = 1, **more: Any) -> Letter:
    """A letter that came to Ann."""
    values = {"recipient": ANN, "action": ACTIVATION, "token": link(number), "code": ""}
    return Letter(**{**values, "at": 100.0, "id": LETTER, **more})


def link(number: int) -> str:
    """What the link of a token spells."""
    return base64.urlsafe_b64encode(bytes([number]) * 32 + bytes(32)).decode().rstrip("=")


def click(status: int, when: float = 200.0, number: int = 1, **more: Any) -> Click:
    """Somebody has used a link; it took a second."""
    said = (ACTIVATION, ANN) if status == 200 and "looks" not in more else None
    return Click(**{"said": said, **more}, token=link(number), status=status, asked_at=when,
                 answered_at=when + 1.0)  # fmt: skip


def opened(*clicks: Click, **more: Any) -> dict[str, Any]:
    """What was seen of an account whose letter came, and of its link."""
    return {"accounts": {ANN: KEPT}, "letters": [came()], "clicks": [*clicks], **more}


def blob(answer: Answer, **more: Any) -> dict[str, Blob]:
    """A blob that was left."""
    return {"M-blob-1": Blob("M-blob-1", 0, answer, **more)}


def got(
    *whens: float, marker: str = "M-blob-1", visit: Visit | None = None, **more: Any
) -> dict[str, list[Delivery]]:
    """A blob that came to a device, in a session or in one for each time."""
    seen = []
    for when in whens:
        inside = visit or Visit(more.get("device", 0), "n1", when - 0.5, whole=True)
        seen.append(Delivery(marker, when, more.get("number", 1), inside, more.get("says", b"")))
        inside.got.append(seen[-1])
    return {marker: seen}


def report(what: Reported, answer: Answer = KEPT) -> list[Report]:
    """What a server said afterwards."""
    return [Report("M-out-1", TO, what, answer)]


def trouble(kind: str, began: float, ended: float, node: str = "n1") -> list[Trouble]:
    """A fault that was at work."""
    return [Trouble(kind, began, ended, node)]


def world(*rows: Row, **seen: Any) -> Seen:
    """What is stored, and what was seen."""
    return rows, History(**seen)


FOREVER, OVER = Mailbox(BOX, 2000.0), Mailbox(BOX, NOW)
ENDED, DELETED = Mailbox(BOX, 300.0), Mailbox(BOX, 2000.0, deletion_asked=200.0, deleted_at=300.0)
ASKED_ONCE = Mailbox(BOX, 2000.0, deletion_asked=300.0)
INTO_DELETED = {"mailboxes": [DELETED], "mail": mail(KEPT)}
WITHOUT: dict[str, Any] = {"deletion_asked": 200.0, "deleted_at": 300.0}
CLOSED_BOX = (("mailboxes", {**box()[1], "is_active": False}),)
BESIDE_THEN = [Trouble("failover", 290.0, 600.0, how=BESIDE)]


def look(of: str, began: float, status: int = 200, **more: Any) -> Look:
    """What was shown of the mailbox, a tenth of a second after it was asked for."""
    if of == "list" and status == 200 and "shown" not in more and "whole" not in more:
        more["shown"] = ["M-in-1"]
    return Look(of, BOX, began, began + 0.1, status, **more)


def seen(shown: Look, **more: Any) -> dict[str, Any]:
    """A message that was handed in at 450, and a look."""
    said = Mail("M-in-1", BOX, RAW, 440.0, KEPT, 450.0, **more)
    return {"mailboxes": [FOREVER], "mail": {"M-in-1": said}, "looks": [shown]}


def limited(
    most: int, one: Answer = KEPT, two: Answer = KEPT, *, full: bool = False, **more: Any
) -> dict[str, Any]:
    """Two messages, at 450 and 510, for a mailbox that may hold so many."""
    handed_in: dict[str, Any] = {"answer": one, "answered_at": 450.0} | more
    first = Mail("M-in-1", BOX, RAW, 440.0, **handed_in)
    second = Mail("M-in-2", BOX, RAW_2, 490.0, two, 510.0, full=full)
    boxes = [Mailbox(BOX, 2000.0, quota=(most, 10_000))]
    return {"mailboxes": boxes, "mail": {"M-in-1": first, "M-in-2": second}}


RAW_2 = RAW.replace(b"1", b"2")
BOTH = (*ARRIVED, message(RAW_2, number=2), summary(2))
OF_ANOTHER = post(110.0, event="e2")
TELLS = {"mailboxes": [Mailbox(BOX, 2000.0, tells=True)], "mail": mail(KEPT)}
ASKED, SENT = {"sends": {OUT: KEPT}}, {"sends": {OUT: KEPT}, "copies": [copy()]}
GONE = {
    "reports": [Report("M-out-9", TO, Reported.GONE, KEPT)],
    "refusals": [Refusal(TO, 20.0, "n1")],
}
SUBMITTED = {"submitters": {"M-out-1": SUBMITTER}}
LETTER = "letter-1@relay.example"
SIGNS = {"keys": [(0.0, ("s1",))]}
NOT_SIGNED = "M-out-1: was signed by () at 200.000 for a@one.example, and not by the keys that sign"
UNSIGNED = copy(200.0, selectors=())
TWO = (account(), account(BOB, 2))


def overtaken(
    made: int = 105, when: float = 110.0, since: int = 106, then: float = 114.0
) -> tuple[Row, ...]:
    """Ann's activation, made and taken, and Bob's recovery, made and taken."""
    return (
        *TWO, token(1, made), letter(when=when, number=11), of_token(1, 11),
        token(2, since, RECOVERY, 2), letter(RECOVER, BOB, then, number=12), of_token(2, 12),
    )  # fmt: skip


AGAIN = "M-blob-1: delivered after it was acknowledged, without excuse"


def again(when: float) -> dict[str, Any]:
    """A blob that came, was acknowledged at 11, and came again."""
    seen = {"received": got(10.0, when), "acknowledged": {"M-blob-1": 11.0}}
    return {"blobs": blob(KEPT), **seen}


PUT = blob(KEPT, at=10.0, answered_at=11.0)
TWIN = [Delivery("M-blob-1", 11.0, 2, Visit(0, "n1", 9.0))]
ENDS = blob(KEPT, at=5.0, answered_at=5.0, lives=15.0, expires_at=20.0)
PAIR = {marker: Blob(marker, 0, KEPT, session="M-blob-1") for marker in ("M-blob-1", "M-blob-2")}


def came_there(when: float) -> dict[str, Any]:
    """A blob that came in a session that had begun before it was left."""
    visit = Visit(0, "n1", 9.0)
    return {"visits": [visit], "received": got(when, visit=visit)}


def in_one_session(*markers: str) -> dict[str, Any]:
    """Two blobs, of which the first was pushed first, that came in this order."""
    visit = Visit(0, "n1", 9.0)
    seen = [got(10.0, marker=each, visit=visit, number=int(each[-1])) for each in markers]
    return {"visits": [visit], "received": seen[0] | seen[1]}


FIRST = [came()]
USED = [click(0)]
RECOVERS = {
    **opened(*USED, asked={ANN: [(RECOVERY, KEPT)]}),
    "letters": [*FIRST, came(2, action=RECOVERY, code="00001", id="another")],
}
SUSPENDED = Suspension(ANN, 190.0, 191.0, 200.5, 202.0)
ACTIVE = signed_up("active", consumed_at=EPOCH + 201)
BEFORE = f"{ANN}: went before the recovery of {BOB}, which had waited"

CASES: list[tuple[str, Seen, list[Seen]]] = [
    # Mail that came in
    (
        f"{BOX}: 201 was said, and there is no mailbox",
        world(mailboxes=[FOREVER]),
        [world(box(), mailboxes=[FOREVER]), world(mailboxes=[OVER])],
    ),
    (
        "M-in-1: 250 was said, and it is not there",
        world(box(), mail=mail(KEPT)),
        [
            world(*ARRIVED, mail=mail(KEPT)),
            world(box(), mail=mail(DOUBT)),
            world(mail=mail(KEPT)),  # its mailbox has gone
        ],
    ),
    (
        "M-in-1: 250 was said, and it is not there",  # of two recipients the other ended before it
        world(box(), mailboxes=[FOREVER], mail=mail(KEPT, together=True)),
        [world(box(), mailboxes=[OVER], mail=mail(KEPT, together=True))],
    ),
    (
        f"M-in-1: 250 was said to {NOBODY}1@relay.example, and that is nobody",
        world(mail=mail(REFUSED, to=f"{NOBODY}1@relay.example", welcome=True)),
        [
            world(mail=mail(REFUSED, to=f"{NOBODY}1@relay.example")),
            world(mailboxes=[OVER], mail=mail(REFUSED, welcome=True)),
        ],
    ),
    (
        "M-in-1: refused, and it is there",
        world(*ARRIVED, mail=mail(REFUSED)),
        [world(*ARRIVED, mail=mail(DOUBT)), world(box(), mail=mail(REFUSED))],
    ),
    (
        "M-in-1: refused for good, and its mailbox takes mail",
        world(box(), mailboxes=[FOREVER], mail=mail(REFUSED, for_good=True)),
        [
            world(box(), mailboxes=[FOREVER], mail=mail(REFUSED)),
            world(box(), mailboxes=[OVER], mail=mail(REFUSED, for_good=True)),
        ],
    ),
    (
        "M-in-1: handed in once, and there 2 times",
        world(*ARRIVED, message(number=2), summary(2), mail=mail(KEPT)),
        [world(*ARRIVED, mail=mail(KEPT))],
    ),
    (
        f"M-in-1: in the mailbox {OTHER}",
        world(box(), box(OTHER), message(to=OTHER), summary(), mail=mail(DOUBT)),
        [world(box(), box(OTHER), message(), summary(), mail=mail(DOUBT))],
    ),
    (
        "M-in-1: stored are other bytes than were sent",
        world(box(), message(RAW + b"."), summary(), mail=mail(KEPT)),
        [world(box(), message(b"Received: from c\r\n" + RAW), summary(), mail=mail(KEPT))],
    ),
    (
        "M-in-1: never summarised",
        world(box(), message(), summary(2), mail=mail(KEPT)),
        [world(*ARRIVED, mail=mail(KEPT))],
    ),
    ("M-in-1: nobody sent it, and it is there", world(*ARRIVED), [world(box())]),
    # A mailbox's end
    (
        f"{BOX}: took mail 0.000000 s after its end",
        world(box(), message(when=2000.0), summary(), mail=mail(KEPT)),
        [world(box(), message(when=1999.999), summary(), mail=mail(KEPT))],
    ),
    (
        f"{BOX}: its mail was read 0.001000 s after its end",
        world(("sim.read_late", {"address": BOX, "by": 0.001})),
        [world()],
    ),
    (
        f"{BOX}: was over, and showed its mail (/raw)",
        world(box(), mailboxes=[ENDED], looks=[look("over", 300.001, sought="/raw")]),
        [
            world(box(), mailboxes=[ENDED], looks=[look("over", 299.999, sought="/raw")]),
            world(box(), mailboxes=[ENDED], looks=[look("over", 300.001, 404)]),
            world(box(), mailboxes=[ENDED], looks=[look("over", 300.001, 0)]),
        ],
    ),
    (
        f"{BOX}: was over, and showed its mail (wait)",
        world(box(), mailboxes=[ENDED], looks=[look("wait", 301, 204)]),
        [],
    ),
    # What was deleted
    (
        f"{BOX}: was deleted, and is there",
        world(box(), mailboxes=[DELETED]),
        [
            world(*CLOSED_BOX, mailboxes=[DELETED]),
            world(mailboxes=[DELETED]),  # with all that was in it
            world(box(), mailboxes=[Mailbox(BOX, 2000.0, deletion_asked=200.0)]),
        ],
    ),
    (
        f"{BOX}: was deleted, and showed its mail (list)",
        world(mailboxes=[DELETED], looks=[look("list", 300.001)]),
        [
            world(mailboxes=[DELETED], looks=[look("list", 299.999)]),
            world(mailboxes=[DELETED], looks=[look("list", 300.001, 404)]),
            world(mailboxes=[DELETED], looks=[look("list", 300.001)], troubles=BESIDE_THEN),
        ],
    ),
    (
        "M-in-1: was deleted, and it is there",
        world(*ARRIVED, mailboxes=[FOREVER], mail=mail(KEPT, **WITHOUT)),
        [
            world(box(), mailboxes=[FOREVER], mail=mail(KEPT, **WITHOUT)),
            world(*ARRIVED, mailboxes=[FOREVER], mail=mail(KEPT, deletion_asked=200.0)),
            world(box(), mailboxes=[FOREVER], mail=mail(KEPT, deletion_asked=200.0)),
        ],
    ),
    (
        "M-in-1: was deleted, and shown at 300.101 by a list",
        world(
            box(), mailboxes=[FOREVER], mail=mail(KEPT, **WITHOUT), looks=[look("list", 300.001)]
        ),
        [
            world(
                box(), mailboxes=[FOREVER], mail=mail(KEPT, **WITHOUT),
                looks=[look("list", 299.999)],
            ),
            world(
                box(), mailboxes=[FOREVER], mail=mail(KEPT, **WITHOUT),
                looks=[look("list", 300.001)], troubles=BESIDE_THEN,
            ),
        ],
    ),
    (
        "M-in-1: was stored after its mailbox was deleted",
        world(*CLOSED_BOX, message(when=300.001), summary(), **INTO_DELETED),
        [world(*CLOSED_BOX, message(when=299.999), summary(), **INTO_DELETED)],
    ),
    (
        f"M-in-1: 250 was said to {BOX}, which was over",
        world(*CLOSED_BOX, mailboxes=[DELETED], mail=mail(REFUSED, welcome=True, asked_at=300.001)),
        [
            world(
                *CLOSED_BOX, mailboxes=[DELETED],
                mail=mail(REFUSED, welcome=True, asked_at=299.999),
            ),
            world(
                *CLOSED_BOX, mailboxes=[DELETED],
                mail=mail(REFUSED, welcome=True, asked_at=300.001), troubles=BESIDE_THEN,
            ),
        ],
    ),
    # What is there is shown
    (
        f"{BOX}: lives, and was not found at 500.100 (list)",
        world(box(), mailboxes=[FOREVER], looks=[look("list", 500, 404)]),
        [
            world(box(), mailboxes=[FOREVER], looks=[look("list", 500, 503)]),
            world(box(), mailboxes=[FOREVER], looks=[look("list", 500, 404)], troubles=BESIDE_THEN),
            world(
                box(), mailboxes=[Mailbox(BOX, 2000.0, deletion_asked=500.05)],
                looks=[look("list", 500, 404)],
            ),
        ],
    ),
    (
        f"{BOX}: lives, and was not found at 300.100 (mailbox)",
        world(mailboxes=[ASKED_ONCE], looks=[look("mailbox", 300, 404)]),
        [
            world(mailboxes=[ASKED_ONCE], looks=[look("mailbox", 300, 404, judged=False)]),
            world(mailboxes=[ASKED_ONCE], looks=[look("mailbox", 300, 503)]),
        ],
    ),
    (
        "M-in-1: is there, and was not found at 500.100 to be deleted",
        world(*ARRIVED, **seen(look("message", 500, 404, sought="M-in-1"), deletion_asked=500.0)),
        [
            world(
                *ARRIVED,
                **seen(
                    look("message", 500, 404, sought="M-in-1", judged=False), deletion_asked=400.0
                ),
            ),
            world(*ARRIVED, **seen(look("message", 500, 404, sought="M-in-2"))),
        ],
    ),
    (
        "M-in-1: is there, and a list does not show it at 500.100",
        world(*ARRIVED, **seen(look("list", 500, whole=True, shown=["M-in-2"]))),
        [
            world(*ARRIVED, **seen(look("list", 500, whole=True, shown=["M-in-2", "M-in-1"]))),
            world(*ARRIVED, **seen(look("list", 500, whole=True, shown=[""]))),  # not parsed yet
            world(*ARRIVED, **seen(look("list", 500))),
            world(*ARRIVED, **seen(look("list", 449, whole=True))),
            world(*ARRIVED, **seen(look("list", 500, whole=True), deletion_asked=500.05)),
            world(*ARRIVED, **seen(look("list", 500, whole=True)), troubles=BESIDE_THEN),
        ],
    ),
    (
        f"M-in-1: was shown 2 times by one list of {BOX}",
        world(*ARRIVED, **seen(look("list", 500, shown=["M-in-1", "M-in-1"]))),
        [world(*ARRIVED, **seen(look("list", 500, shown=["", "", "M-in-1"])))],
    ),
    (
        "M-in-1: is there, and a wait said at 520.100 that none is",
        world(*ARRIVED, **seen(look("wait", 520, 204, sought="M-in-1"))),
        [
            world(*ARRIVED, **seen(look("wait", 520, 204, sought="M-in-2"))),
            world(*ARRIVED, **seen(look("wait", 520, 204, judged=False))),
            world(*ARRIVED, **seen(look("wait", 450.9, 204))),
            world(*ARRIVED, **seen(look("wait", 520, 503))),
            world(*ARRIVED, **seen(look("wait", 520, 204)), troubles=trouble("kill", 440.0, 441.0)),
            world(
                *ARRIVED, **seen(look("wait", 520, 204), parsed_at=500.0),
                troubles=trouble("failover", 499.5, 501.0),
            ),
        ],
    ),
    (
        "M-in-1: is there, and a wait said at 520.100 that none is",  # it had been parsed
        world(
            *ARRIVED, **seen(look("wait", 520, 204), parsed_at=500.0),
            troubles=trouble("kill", 499.5, 501.0),
        ),
        [],
    ),
    # Quotas
    (
        f"M-in-2: 250 was said, and {BOX} held 1 messages and 27 bytes",
        world(*BOTH, **limited(1)),
        [
            world(*BOTH, **limited(2)),
            world(*BOTH, **limited(1, answered_at=500.0)),  # it was in hand
            world(*BOTH, **limited(1, deletion_asked=460.0)),
            world(*BOTH, **limited(1), troubles=BESIDE_THEN),
            world(*BOTH, mailboxes=[FOREVER], mail=limited(1)["mail"]),
        ],
    ),
    (
        f"M-in-2: was refused, and {BOX} held 1 messages and 2027 bytes at most",
        world(*ARRIVED, **limited(2, KEPT, REFUSED, full=True)),
        [
            world(*ARRIVED, **limited(1, KEPT, REFUSED, full=True)),
            world(*ARRIVED, **limited(2, KEPT, REFUSED)),
            world(*ARRIVED, **limited(2, KEPT, REFUSED, full=True), troubles=BESIDE_THEN),
        ],
    ),
    # Mail that went out
    (
        f"{UUID(int=7)}: is in the queue 2 times",
        world(queued(number=7), queued(number=7)),
        [world(queued(number=7), queued(number=8))],
    ),
    (
        f"{OUT}: 202 was said, and it is not in the queue",
        world(**ASKED),
        [world(queued(), **SENT), world(sends={OUT: DOUBT})],
    ),
    (
        f"{OUT}: refused, and it is in the queue",
        world(queued(), sends={OUT: REFUSED}, copies=[copy()]),
        [world(queued(), sends={OUT: DOUBT}, copies=[copy()]), world(sends={OUT: REFUSED})],
    ),
    (
        f"{OUT}: sent once, and queued 2 times",
        world(queued(), queued(), **SENT),
        [world(queued(), queued(to=SECURED), **SENT)],
    ),
    (
        f"{OUT}: said to be sent, and nobody got it",
        world(queued(), **ASKED),
        [world(queued(), **SENT), world(queued("pending"), sends={OUT: DOUBT})],
    ),
    (
        f"{OUT}: a server took it at 100.000 from n1, nobody refused it after that, and in the end"
        " it is failed",
        world(
            queued("failed"),
            refusals=[Refusal(TO, 40.0, "n2"), Refusal(SECURED, 140.0, "n2")],
            **SENT,
        ),
        [
            world(queued("failed"), refusals=[Refusal(TO, 140.0, "n2")], **SENT),
            world(
                queued("failed"), refusals=[Refusal(TO, 40.0, "n2")],
                troubles=trouble("kill", 100.5, 110.0), **SENT,
            ),
        ],
    ),
    (
        f"{OUT}: accepted, and in the end failed",
        world(queued("failed"), refusals=[Refusal(SECURED, 40.0, "n2")], **ASKED),
        [
            world(queued("failed"), refusals=[Refusal(TO, 40.0, "n2")], **ASKED),
            world(queued("failed"), sends={OUT: DOUBT}),
        ],
    ),
    (
        f"{OUT}: accepted, and in the end bounced",
        world(queued("bounced"), reports=report(Reported.DELAYED), **SENT),
        [world(queued("bounced"), reports=report(Reported.POLICY), **SENT)],
    ),
    (
        f"{OUT}: accepted, and in the end bounced",  # and what was reported is of another
        world(
            queued("bounced"),
            reports=[Report("M-out-1", SECURED, Reported.POLICY, KEPT)],
            refusals=[Refusal(SECURED, 140.0, "n1")],
            **SENT,
        ),
        [],
    ),
    (
        f"{OUT}: accepted, and in the end pending",
        world(queued("pending"), refusals=[Refusal(TO, 40.0, "n2")], **ASKED),
        [world(queued("pending"), sends={OUT: DOUBT})],
    ),
    (
        f"{OUT}: held, and nobody had vanished with it",
        world(queued("held", number=7), tried(7, "queued"), tried(8, "lost"), **ASKED),
        [world(queued("held", number=7), tried(7, "lost"), **ASKED)],
    ),
    (
        f"{OUT}: a server got another text than was written",
        world(queued(), **ASKED, copies=[copy(whole=False)]),
        [world(queued(), **ASKED, copies=[copy()])],
    ),
    (
        f"{OUT}: held, and nobody had vanished with it",
        world(queued("held"), reports=report(Reported.POLICY), **ASKED),
        [],
    ),
    (
        f"{OUT}: sent at 100.000 by n1 and again at 105.000 by n2, without excuse",
        world(queued(), **ASKED, copies=[copy(105.0, "n2"), copy()]),
        [
            world(queued(), **ASKED, copies=[copy(105.0, "n2"), copy(told=False)]),
            world(
                queued(), **ASKED, copies=[copy(105.0, "n2"), copy()],
                troubles=trouble("kill", 101.0, 103.0),
            ),
        ],
    ),
    (
        f"{ANN} {LETTER}: sent at 100.000 by n1 and again at 105.000 by n1, without excuse",
        world(copies=[copy(to=ANN, letter=LETTER), copy(105.0, to=ANN, letter=LETTER)]),
        [
            world(copies=[copy(to=ANN, letter=LETTER), copy(105.0, to=ANN, letter="another")]),
            world(copies=[copy(to=ANN, letter=LETTER), copy(105.0, to=BOB, letter=LETTER)]),
        ],
    ),
    # What was asked for besides the message
    (
        "M-out-1: was asked for with one key, and is 2 messages",
        world(queued(), **SENT, wishes=wish(ids={("1",): None, ("2",): None})),
        [world(queued(), **SENT, wishes=wish(ids={("1",): None}))],
    ),
    (
        "M-out-1: 202 was said, and it was refused when asked for again",
        world(queued(), **SENT, wishes=wish(100.0, DOUBT, KEPT, KEPT, REFUSED)),
        [
            world(queued(), **SENT, wishes=wish(100.0, DOUBT, KEPT, KEPT, DOUBT)),
            world(wishes=wish(100.0, REFUSED)),
        ],
    ),
    *(
        (
            f"M-out-1: to another text with its key {status} was said",
            world(queued(), **SENT, wishes=wish(other=[409, status])),
            [world(queued(), **SENT, wishes=wish(other=[409, 503, 0]))],
        )
        for status in (202, 422)
    ),
    (
        f"{OUT}: was sent at 100.000, and was for 100.001",
        world(queued(), **SENT, wishes=wish(send_at=100.001)),
        [world(queued(), **SENT, wishes=wish(send_at=100.0))],
    ),
    (
        f"{OUT}: was to be held, and was sent again at 105.000",
        world(
            queued(), **ASKED, copies=[copy(105.0, "n2"), copy(told=False)],
            wishes=wish(holds=True),
        ),
        [
            world(queued(), **SENT, wishes=wish(holds=True)),
            world(
                queued(), **ASKED, copies=[copy(105.0, "n2"), copy(told=False)], wishes=wish()
            ),
        ],
    ),
    (
        f"{OUT}: held, and nobody had vanished with it",
        world(queued("held", number=7), tried(7, "held"), **ASKED, wishes=wish()),
        [world(queued("held", number=7), tried(7, "held"), **ASKED, wishes=wish(holds=True))],
    ),
    *(
        (
            f"{OUT}: held, and nobody had vanished with it",
            world(queued("held", number=7), attempt, **ASKED, wishes=wish(holds=True)),
            [],
        )
        for attempt in (tried(7, "held", "rcpt"), tried(7, "held", code=451), tried(8, "held"))
    ),
    # Who is suppressed is not written to
    (
        f"{OUT}: 202 was said, and its recipient was suppressed",
        world(suppressed(), queued(), **SENT, **GONE, wishes=wish(211.0)),
        [
            world(suppressed(), queued(), **SENT, **GONE, wishes=wish(210.0)),
            world(suppressed(), sends={OUT: REFUSED}, **GONE, wishes=wish(211.0)),
            world(suppressed(when=52.0), queued(), **SENT, **GONE, wishes=wish(211.0)),
        ],
    ),
    (
        f"{OUT}: 202 was said, and its recipient was suppressed",
        world(suppressed(), queued(), **SENT, **GONE, wishes=wish(61.0), suppressed={TO: 60.0}),
        [
            world(  # said of a suppression that was lost with its server
                suppressed(when=60.5), queued(), **SENT, **GONE, wishes=wish(61.0),
                suppressed={TO: 60.0},
            ),
        ],
    ),
    (
        f"{OUT}: was sent at 300.000, and its recipient was suppressed before it was due",
        world(
            suppressed(), queued(), **ASKED, copies=[copy(300.0)], **GONE,
            wishes=wish(40.0, send_at=211.0),
        ),
        [
            world(
                suppressed(), queued(), **ASKED, copies=[copy(300.0)], **GONE,
                wishes=wish(40.0, send_at=210.0),
            ),
            world(
                suppressed(), queued("cancelled", error="suppressed"), **ASKED, **GONE,
                wishes=wish(40.0, send_at=211.0),
            ),
        ],
    ),
    (
        f"{OUT}: accepted, and in the end cancelled",
        world(queued("cancelled", error="suppressed"), **ASKED),
        [
            world(suppressed(), queued("cancelled", error="suppressed"), **ASKED, **GONE),
            world(queued("cancelled", error="suppressed"), sends={OUT: DOUBT}),
        ],
    ),
    (
        f"{OUT}: accepted, and in the end cancelled",
        world(suppressed(), queued("cancelled", error="expired"), **ASKED, **GONE),
        [],
    ),
    # Who submitted it is told
    *(
        (
            f"{OUT}: was refused, and its submitter was not told",
            world(queued(status), **SUBMITTED),
            [
                world(queued(status), **SUBMITTED, copies=[told_of("1")]),
                world(
                    queued(status), **SUBMITTED, copies=[told_of("1", SECURED, TO)],
                ),
                world(queued(status), **SUBMITTED, refusals=[Refusal(SUBMITTER, 140.0, "n1")]),
                world(queued(status), submitters={"M-out-2": SUBMITTER}),
                world(queued(), **SUBMITTED),
            ],
        )
        for status in ("failed", "bounced", "cancelled")
    ),
    (
        f"{OUT}: was refused, and its submitter was not told",  # but of another
        world(queued("failed"), **SUBMITTED, copies=[told_of("1", SECURED)]),
        [],
    ),
    *(
        (
            f"{OUT}: its submitter was told that it failed: {status}",
            world(queued(status), **SUBMITTED, copies=[told_of("1")]),
            [world(queued(status), **SUBMITTED, copies=[told_of("1", SECURED)])],
        )
        for status in ("sent", "held")
    ),
    (
        f"{OUT}: its submitter was told 2 times",
        world(queued("failed"), **SUBMITTED, copies=[told_of("1"), told_of("2")]),
        [
            world(  # the same report again, which was lost on its way
                queued("failed"), **SUBMITTED,
                copies=[told_of("1"), replace(told_of("1"), at=100.5)],
                troubles=trouble("kill", 99.5, 100.0),
            ),
            world(queued("failed"), **SUBMITTED, copies=[told_of("1"), told_of("2", SECURED)]),
        ],
    ),
    # What came back
    (
        f"{OUT}: 250 was said to a forged report",
        world(reports=report(Reported.FORGED)),
        [world(reports=report(Reported.FORGED, REFUSED))],
    ),
    (
        f"{OUT}: its server's report (delayed) was refused",
        world(reports=report(Reported.DELAYED, REFUSED)),
        [world(reports=report(Reported.DELAYED))],
    ),
    (
        f"{OUT}: its server reported that it bounced, and it is sent",
        world(queued(), reports=report(Reported.POLICY)),
        [
            world(queued("bounced"), reports=report(Reported.POLICY)),
            world(queued("held"), reports=report(Reported.POLICY)),
            world(
                queued(), reports=report(Reported.POLICY), refusals=[Refusal(TO, 140.0, "n1")]
            ),
            world(queued(), reports=report(Reported.DELAYED)),
        ],
    ),
    (
        f"{OUT}: a report of it (gone) suppressed nobody",
        world(queued("bounced"), reports=report(Reported.GONE)),
        [
            world(queued("bounced"), suppressed(), reports=report(Reported.GONE)),
            world(queued("bounced"), reports=report(Reported.POLICY)),
        ],
    ),
    (
        f"{OUT}: a report of it (complaint) suppressed nobody",
        world(queued(), reports=report(Reported.COMPLAINT)),
        [world(queued(), suppressed(), reports=report(Reported.COMPLAINT))],
    ),
    (
        f"{TO}: is suppressed, and nobody said why",
        world(queued("bounced"), suppressed(), reports=report(Reported.POLICY)),
        [world(queued("bounced"), suppressed(), reports=report(Reported.GONE))],
    ),
    # Signatures, TLS
    (
        NOT_SIGNED,
        world(copies=[UNSIGNED], **SIGNS),
        [
            world(copies=[copy(200.0, selectors=("s1",))], **SIGNS),
            world(copies=[copy(200.0, selectors=None)], **SIGNS),
            world(copies=[UNSIGNED], keys=[(126.0, ("s1",))]),  # news of it is late
            world(copies=[UNSIGNED], keys=[(0.0, ("s1",)), (274.0, ())]),
            world(copies=[UNSIGNED], keys=[(0.0, None)]),
            world(copies=[UNSIGNED], **SIGNS, troubles=trouble("kill", 20.0, 41.0)),
        ],
    ),
    (NOT_SIGNED, world(copies=[UNSIGNED], keys=[(124.0, ("s1",))]), []),
    (NOT_SIGNED, world(copies=[UNSIGNED], keys=[(0.0, ("s1",)), (276.0, ())]), []),
    (
        NOT_SIGNED,
        world(copies=[UNSIGNED], **SIGNS, troubles=trouble("kill", 20.0, 39.0)),
        [],
    ),
    (
        NOT_SIGNED.replace("M-out-1", LETTER),
        world(copies=[Copy("", TO, 200.0, letter=LETTER, selectors=())], **SIGNS),
        [],
    ),
    *(
        (
            f"M-out-1/{SECURED}: went to mx2 at 100.000 {how}",
            world(copies=[copy(to=SECURED, server="mx2", key=key)]),
            [
                world(copies=[copy(to=SECURED, server="mx2", key=OWN)]),
                world(copies=[copy(to=SECURED, server="upstream", key=key)]),
                world(copies=[copy(to=TO, server="mx1", key=key)]),
            ],
        )
        for key, how in (("", "in clear"), (ANOTHER, "by a key that its domain does not name"))
    ),
    # Accounts and their letters
    (
        f"{ANN}: 201 was said, and there is no account",
        world(accounts={ANN: KEPT}),
        [world(*signed_up(), **opened()), world(accounts={ANN: DOUBT})],
    ),
    (
        f"{ANN}: was refused, and there is an account",
        world(*signed_up(), **opened(accounts={ANN: REFUSED})),
        [world(*signed_up(), **opened()), world(accounts={ANN: REFUSED})],
    ),
    (
        f"{ANN}: one token, 2 letters",
        world(*signed_up(), letter(number=7), of_token(1, 7), **opened()),
        [world(*signed_up(), **opened()), world(*signed_up(), *recovering()[2:], **RECOVERS)],
    ),
    (
        f"{ANN}: one token, and 2 letters came",
        world(*signed_up(), **opened(letters=[came(), came(id="another")])),
        [world(*signed_up(), **opened(letters=[came(), came(at=105.0)]))],
    ),
    (
        f"{ANN}: has an account and got no letter",
        world(*signed_up()[:2], **opened()),
        [world(*signed_up(), **opened()), world(accounts={ANN: DOUBT})],
    ),
    (
        f"{ANN}: got a letter whose token there is not",
        world(*signed_up(), **opened(letters=[came(), came(2)])),
        [world(*signed_up(), **opened())],
    ),
    *(
        (
            f"{ANN}: got a letter that is not of its token",
            world(*recovering(), **{**RECOVERS, "letters": [*FIRST, wrong]}),
            [world(*recovering(), **RECOVERS)],
        )
        for wrong in (
            came(2, action=RECOVERY, code="00002", id="another"),
            came(2, id="another"),
        )
    ),
    (
        f"{ANN}: got a letter that is not of its token",
        world(
            *signed_up(), account(BOB, 2), token(2, 50, account=2),
            **opened(letters=[came(), came(2)]),
        ),
        [],
    ),
    (
        f"{ANN}: its letter is said to be sent, and nobody got it",
        world(*signed_up(), **opened(letters=[])),
        [world(*signed_up(), **opened())],
    ),
    (
        f"{ANN}: its letter is bounced, and nobody refused it",
        world(*signed_up(letter_is="bounced"), **opened(letters=[])),
        [
            world(
                *signed_up(letter_is="bounced"),
                **opened(letters=[], refusals=[Refusal(ANN, 140.0, "n1")]),
            ),
        ],
    ),
    (
        f"{ANN}: its letter ({ACTIVATION}) is cancelled, and never came",
        world(*signed_up(letter_is="cancelled"), **opened(letters=[])),
        [
            world(*signed_up(letter_is="held"), **opened(letters=[])),
            world(*signed_up("active", "cancelled"), **opened(click(0), letters=[])),
            world(
                *signed_up(letter_is="cancelled", expires_at=EPOCH + 930), **opened(letters=[])
            ),
            world(
                *signed_up(letter_is="cancelled"), **opened(letters=[]),
                suspensions=[Suspension(ANN, 500.0, ended=510.0)],
            ),
        ],
    ),
    (
        f"{ANN}: its letter ({RECOVERY}) is not there, and never came",
        world(*recovering()[:3], letter(), **{**RECOVERS, "letters": FIRST}),
        [
            world(
                *recovering(consumed_at=EPOCH + 70)[:3], letter(),
                **{**RECOVERS, "letters": FIRST, "clicks": [*USED, click(0, number=2)]},
            ),
        ],
    ),
    (
        f"{ANN}: was promised 2 letters ({ACTIVATION}), and has 1 tokens",
        world(*signed_up(), **opened(), asked={ANN: [(ACTIVATION, KEPT), (ACTIVATION, DOUBT)]}),
        [
            world(*signed_up(), **opened(), asked={ANN: [(ACTIVATION, DOUBT), (RECOVERY, DOUBT)]}),
            *(
                world(*signed_up("suspended"), token(2, 60), **opened(), asked={ANN: [each]})
                for each in ((ACTIVATION, KEPT), (ACTIVATION, DOUBT))
            ),
        ],
    ),
    (
        f"{ANN}: was promised 0 letters ({RECOVERY}), and has 1 tokens",
        world(*recovering(), **{**RECOVERS, "asked": {ANN: [(RECOVERY, REFUSED)]}}),
        [world(*recovering(), **{**RECOVERS, "asked": {ANN: [(RECOVERY, DOUBT)]}})],
    ),
    (
        f"{ANN}: its letter was queued 30.000 s after its end",
        world(*signed_up(expires_at=EPOCH + 70), **opened()),
        [world(*signed_up(expires_at=EPOCH + 76), **opened())],
    ),
    (
        f"{ANN}: its letter came 70.000 s after its end",
        world(
            *signed_up(expires_at=EPOCH + 90), **opened(letters=[came(at=160.0)]),
            troubles=trouble("kill", 80.0, 170.0),
        ),
        [
            world(*signed_up(expires_at=EPOCH + 96), **opened(letters=[came(at=160.0)])),
            *(
                world(
                    *signed_up(expires_at=EPOCH + 90), **opened(letters=[came(at=160.0)]),
                    troubles=trouble(kind, 80.0, 91.0),
                )
                for kind in ("freeze", "partition")
            ),
        ],
    ),
    (
        f"{ANN}: 200 was said to the end of its suspension, and it is on",
        world(*signed_up("suspended"), **opened(), suspensions=[SUSPENDED]),
        [
            world(*signed_up(), **opened(), suspensions=[SUSPENDED]),
            world(
                *signed_up("suspended"), **opened(), activated=[ANN],
                suspensions=[SUSPENDED, Suspension(ANN, 300.0, 301.0, 303.0)],
            ),
        ],
    ),
    # Links
    (
        f"{ANN}: its link was good at 201.000, while it was suspended",
        world(*ACTIVE, **opened(click(200)), suspensions=[Suspension(ANN, 198.0, 199.0, 202.0)]),
        [
            world(*ACTIVE, **opened(click(200)), suspensions=[Suspension(*each)])
            for each in (
                (BOB, 198.0, 199.0, 202.0), (ANN, 198.0, 200.5), (ANN, 198.0, 199.0, 200.5)
            )
        ],
    ),
    (
        f"{ANN}: was told that it is active, and is provisioned",
        world(account(), letter(), activated=[ANN, ANN]),
        [world(account(status="active"), activated=[ANN]), world(account())],
    ),
    (
        f"{ANN}: is active, and nobody activated it",
        world(*signed_up("active"), **opened(click(200, looks=True))),
        [world(*ACTIVE, **opened(click(503)))],
    ),
    (
        f"{ANN}: its link is good once, and was good 2 times",
        world(*ACTIVE, **opened(click(200), click(200, 205.0))),
        [
            world(*ACTIVE, **opened(click(200), click(400, 205.0))),
            world(*ACTIVE, **opened(click(200), click(503), click(0, 205.0))),
        ],
    ),
    (
        f"{ANN}: 200 was said to its link, and that is not used",
        world(*signed_up("active"), **opened(click(200))),
        [world(*ACTIVE, **opened(click(200))), world(*signed_up(), **opened(click(503)))],
    ),
    (
        f"{ANN}: its link is used, and nobody used it",
        world(
            *signed_up(consumed_at=EPOCH + 60),
            **opened(click(200, looks=True), click(0, looks=True)),
        ),
        [world(*ACTIVE, **opened(click(0))), world(*ACTIVE, **opened(click(503)))],
    ),
    (
        f"{ANN}: its link was good at 951.000, after its end",
        world(*ACTIVE, **opened(click(200, 950.0))),
        [world(*ACTIVE, **opened(click(200, 949.0)))],
    ),
    (
        f"{ANN}: its link was taken for ('activation', '{BOB}')",
        world(*ACTIVE, **opened(click(200, said=(ACTIVATION, BOB)))),
        [world(*ACTIVE, **opened(click(200)))],
    ),
    *(
        (
            f"{ANN}: its link was refused at 201.000, and is good",
            world(*signed_up(), **opened(click(400, **looks))),
            [
                world(*signed_up(expires_at=EPOCH + 201), **opened(click(400, **looks))),
                world(*signed_up(), **opened(click(400, **looks)), suspensions=[SUSPENDED]),
                world(*ACTIVE, **opened(click(503, 190.0), click(400, **looks))),
                world(*ACTIVE, **opened(click(200, 200.5), click(400, **looks))),
                world(
                    *ACTIVE, token(2, 60),
                    **opened(click(200), click(400, 202.0, number=2, **looks)),
                    asked={ANN: [(ACTIVATION, KEPT)]},
                ),
                world(
                    *signed_up(), **opened(click(400, **looks)),
                    troubles=[Trouble("failover", 100.0, 195.0, how="beside")],
                ),
            ],
        )
        for looks in ({}, {"looks": True})
    ),
    (
        f"{ANN}: its link was refused at 201.000, and is good",  # by the old primary, no more
        world(
            *signed_up(), **opened(click(400)),
            troubles=[Trouble("failover", 100.0, 193.0, how="beside")],
        ),
        [],
    ),
    (
        f"{ANN}: its link was of no use from 201.000 on, and is of some at 300.000",
        world(*ACTIVE, **opened(click(0, 190.0), click(400), click(200, 299.0))),
        [
            world(*ACTIVE, **opened(click(0, 190.0), click(400, 299.5), click(200, 299.0))),
            world(
                *ACTIVE, **opened(click(400), click(200, 299.0)), suspensions=[SUSPENDED]
            ),
            world(
                *ACTIVE, **opened(click(0, 190.0), click(400, looks=True), click(200, 299.0))
            ),
            world(
                *ACTIVE, **opened(click(0, 190.0), click(400), click(200, 299.0)),
                troubles=[Trouble("failover", 100.0, 195.0, how="beside")],
            ),
        ],
    ),
    (
        f"{ANN}: its link was of no use from 201.000 on, and is of some at 300.000",
        world(*ACTIVE, **opened(click(200), click(200, 299.0, looks=True))),
        [world(*ACTIVE, **opened(click(200), click(200, 200.5, looks=True)))],
    ),
    # Whose token goes first
    (
        BEFORE,
        world(*overtaken()),
        [
            world(*overtaken(made=101)),  # nine seconds: it had waited, too
            world(*overtaken(then=113.0)),  # about as soon
            world(*overtaken(), suspensions=[Suspension(BOB, 112.0)]),
            world(*overtaken(since=107)),  # about as late
            world(*overtaken(), troubles=trouble("kill", 111.0, 112.0)),
            world(*overtaken(), troubles=trouble("freeze", -60.0, -50.0)),
        ],
    ),
    (
        BEFORE,
        world(*overtaken(), troubles=trouble("peer", 100.0, 120.0) + trouble("clock", 0.0, 200.0)),
        [],
    ),
    # A device's blobs
    (
        "M-blob-1: acknowledged, and its device never got it",
        world(blobs=blob(KEPT)),
        [
            world(blobs=blob(KEPT), received=got(10.0)),
            world(blobs=blob(DOUBT)),
            world(blobs=blob(KEPT, lives=20.0, answered_at=1.0, expires_at=20.5)),
        ],
    ),
    (
        "M-blob-1: acknowledged while its device was there, and not delivered soon",
        world(**came_there(13.0), blobs=PUT),
        [
            world(**came_there(11.5), blobs=PUT),
            world(received=got(13.0), visits=[Visit(0, "n1", 9.5)], blobs=PUT),
            world(received=got(13.0), visits=[Visit(0, "n1", 1.0, 11.5)], blobs=PUT),
            world(received=got(13.0), visits=[Visit(1, "n1", 1.0)], blobs=PUT),
            world(
                **came_there(13.0), blobs=PUT,
                troubles=trouble("kill", -70.0, -49.0, "n2"),
            ),
            world(visits=[Visit(0, "n1", 9.0)], blobs=blob(DOUBT, at=10.0, answered_at=11.0)),
        ],
    ),
    (
        "M-blob-1: acknowledged while its device was there, and not delivered soon",
        world(
            **came_there(13.0), blobs=PUT,
            troubles=trouble("kill", -70.0, -51.0) + trouble("peer", 0.0, 20.0),
        ),
        [],
    ),
    (
        "M-blob-1: refused, and its device got it",
        world(blobs=blob(REFUSED), received=got(10.0)),
        [world(blobs=blob(DOUBT), received=got(10.0)), world(blobs=blob(REFUSED))],
    ),
    (
        "M-blob-1: was to live for 20 s, and ends at 19.500",
        world(blobs=blob(KEPT, lives=20.0, answered_at=1.0, expires_at=19.5)),
        [world(blobs=blob(KEPT, lives=20.0, answered_at=1.0, expires_at=21.0))],
    ),
    (
        "M-blob-1: was to live for 20 s, and ends at 21.500",
        world(blobs=blob(KEPT, lives=20.0, answered_at=1.0, expires_at=21.5)),
        [],
    ),
    (
        "M-blob-1: was left once, and is there 2 times",
        world(blobs=blob(KEPT), received={"M-blob-1": got(10.0)["M-blob-1"] + TWIN}),
        [world(blobs=blob(KEPT), received=got(10.0, 11.0))],
    ),
    (
        "M-blob-1: went to device2",
        world(blobs=blob(KEPT), received=got(10.0, device=1)),
        [world(blobs=blob(KEPT), received=got(10.0))],
    ),
    (
        "M-blob-1: its device got other bytes than were left",
        world(blobs=blob(KEPT, envelope=b"one"), received=got(10.0, says=b"two")),
        [world(blobs=blob(KEPT, envelope=b"one"), received=got(10.0, says=b"one"))],
    ),
    ("M-blob-1: nobody left it, and device1 got it", world(received=got(10.0)), []),
    *(
        (
            "M-blob-1: came 10.000 s after its end",
            world(blobs=ENDS, received=got(30.0), troubles=wrong),
            [world(blobs=ENDS, received=got(20.5)), *excused],
        )
        for wrong, excused in (
            ([], []),
            (  # it was left when its node had lost sight of the database, or stood still, already
                trouble("partition", 3.0, 31.0) + trouble("freeze", 3.0, 31.0),
                [
                    world(blobs=ENDS, received=got(30.0), troubles=each)
                    for each in (
                        [Trouble("partition", 5.5, 31.0, "n1", "db")],
                        [Trouble("stall", 5.5, 29.5)],
                        trouble("freeze", 5.5, 25.0) + trouble("freeze", 24.0, 31.0),
                        [Trouble("partition", 3.0, 31.0, "n1", "device1")],
                    )
                ],
            ),
            ([Trouble("partition", 5.5, 31.0, "n1", "client1")], []),
            ([Trouble("partition", 5.5, 31.0, "n2", "db")], []),
            ([Trouble("partition", 5.5, 31.0, "n1", "device2")], []),
            (trouble("freeze", 5.5, 28.5), []),
            (trouble("freeze", 5.5, 31.0, "n2"), []),
            (trouble("kill", 5.5, 31.0), []),
        )
    ),
    (
        AGAIN,
        world(**again(11.125)),
        [
            world(**again(11.0625)),  # it was on its way
            world(**again(11.125), troubles=trouble("cut", 10.25, 10.25)),
            world(**again(11.125), troubles=trouble("cut", 11.125, 12.0)),
            world(**again(11.125) | {"acknowledged": {}}),
        ],
    ),
    (AGAIN, world(**again(11.125), troubles=trouble("cut", 9.75, 9.75)), []),
    (
        "M-blob-1: came again after its device had learned that it is gone",
        world(**again(30.0), heard={"M-blob-1": 12.0}, troubles=trouble("failover", 13.0, 20.0)),
        [
            world(**again(11.5), heard={"M-blob-1": 12.0}, troubles=trouble("kill", 11.0, 20.0)),
            world(
                **again(30.0), heard={"M-blob-1": 12.0},
                troubles=[Trouble("failover", 13.0, 24.0, how="beside")],
            ),
        ],
    ),
    (
        "M-blob-1: came again after its device had learned that it is gone",  # of the new primary
        world(
            **again(30.0), heard={"M-blob-1": 12.0},
            troubles=[Trouble("failover", 13.0, 23.0, how="beside")],
        ),
        [],
    ),
    (
        "M-blob-1: came after M-blob-2, and is not younger",
        world(blobs=PAIR, **in_one_session("M-blob-2", "M-blob-1")),
        [world(blobs=PAIR, **in_one_session("M-blob-1", "M-blob-2"))],
    ),
    (
        "M-blob-2: was pushed after M-blob-1, and came before it",
        world(blobs=PAIR, received=got(10.0, number=2) | got(10.0, marker="M-blob-2", number=1)),
        [
            world(blobs=PAIR, received=got(10.0) | got(10.0, marker="M-blob-2", number=2)),
            world(
                blobs={marker: replace(each, session=marker) for marker, each in PAIR.items()},
                received=got(10.0, number=2) | got(10.0, marker="M-blob-2", number=1),
            ),
        ],
    ),
    (
        "M-blob-1: expired, and its device was not told",
        world(blobs=ENDS, visits=[Visit(0, "n1", 22.0, whole=True)]),
        [
            world(blobs=ENDS, visits=[Visit(0, "n1", 22.0, whole=True, missed=1)]),
            world(blobs=ENDS, visits=[Visit(0, "n1", 20.5, whole=True)]),
            world(blobs=ENDS, visits=[Visit(0, "n1", 22.0)]),
            world(
                blobs=ENDS, visits=[Visit(0, "n1", 22.0, 24.0, whole=True)],
                troubles=trouble("kill", 23.0, 25.0),
            ),
            world(blobs=ENDS, visits=[Visit(0, "n1", 22.0, whole=True)], received=got(12.0)),
        ],
    ),
    (
        "device1: was told that 2 blobs have expired, and 1 were to",
        world(blobs=ENDS, visits=[Visit(0, "n1", 22.0, missed=1), Visit(0, "n1", 32.0, missed=1)]),
        [
            world(
                blobs=ENDS,
                visits=[Visit(0, "n1", 22.0, 23.0, missed=1), Visit(0, "n1", 32.0, missed=1)],
                troubles=trouble("kill", 22.5, 25.0),
            ),
        ],
    ),
    # Webhooks
    (
        "M-in-1: arrived, and nobody was told",
        world(*ARRIVED, **TELLS),
        [
            world(*ARRIVED, **TELLS, told=[f"M-in-1/{BOX}"]),
            world(*ARRIVED, mailboxes=[FOREVER], mail=mail(KEPT)),
            world(*ARRIVED, mailboxes=[Mailbox(BOX, NOW, tells=True)], mail=mail(KEPT)),
            world(*ARRIVED, mailboxes=TELLS["mailboxes"], mail=mail(DOUBT)),
        ],
    ),
    (f"M-in-1/{BOX}: nobody sent it, and it was told of", world(posts=[post()]), [world()]),
    (
        f"M-in-1/{BOX}: was told of with another id than its event's",
        world(*ARRIVED, mail=mail(KEPT), posts=[post(named=False)]),
        [world(*ARRIVED, mail=mail(KEPT), posts=[post()])],
    ),
    (
        f"M-in-1/{BOX}: was told of, and not signed",
        world(*ARRIVED, mail=mail(KEPT), posts=[post(signed=False)]),
        [world(*ARRIVED, mail=mail(KEPT), posts=[post()])],
    ),
    (
        f"M-in-1/{BOX}: was told of 1.001 s after its end",
        world(*ARRIVED, mailboxes=[ENDED], mail=mail(KEPT), posts=[post(301.001)]),
        [
            world(*ARRIVED, mailboxes=[ENDED], mail=mail(KEPT), posts=[post(300.999)]),
            world(
                *ARRIVED, mailboxes=[ENDED], mail=mail(KEPT), posts=[post(301.001)],
                troubles=trouble("stall", 290.0, 299.5, ""),
            ),
        ],
    ),
    (
        f"M-in-1/{BOX}: was told of by more than one event",
        world(*ARRIVED, mail=mail(KEPT), posts=[post(told_at=None, ended_at=101.0), OF_ANOTHER]),
        [
            world(
                *ARRIVED, mail=mail(KEPT),
                posts=[post(told_at=None, ended_at=101.0), post(110.0)],
            ),
        ],
    ),
    (
        f"M-in-1/{BOX}: posted at 100.000 by n1 and again at 110.000 by n2, though it was told,"
        " without excuse",
        world(*ARRIVED, mail=mail(KEPT), posts=[post(110.0, "n2"), post()]),
        [
            world(*ARRIVED, mail=mail(KEPT), posts=[post(120.0, "n2"), post(told_at=114.1)]),
            *(
                world(*ARRIVED, mail=mail(KEPT), posts=[post(), post(110.0, "n2")], troubles=each)
                for each in (
                    trouble("kill", 100.2, 103.0),
                    trouble("freeze", 30.0, 108.0, "n2"),
                    trouble("database", 104.9, 110.1, ""),
                    [Trouble("partition", 100.2, 103.0, "n1", HOOKS)],
                )
            ),
        ],
    ),
    *(
        (
            f"M-in-1/{BOX}: posted at 100.000 by n1 and again at 110.000 by n2, though it was told,"
            " without excuse",
            world(*ARRIVED, mail=mail(KEPT), posts=[post(), post(110.0, "n2")], troubles=each),
            [],
        )
        for each in (
            trouble("kill", 100.2, 103.0, "n2"),
            trouble("kill", 90.0, 98.9),
            trouble("freeze", 30.0, 108.0, "n3"),
            trouble("database", 100.0, 104.9, ""),
            [Trouble("partition", 100.2, 103.0, "n1", "client1")],
        )
    ),
    (
        f"M-in-1/{BOX}: posted at 100.000 by n1 and again at 110.000 by n2, both under way, without"
        " excuse",
        world(*ARRIVED, mail=mail(KEPT), posts=[post(told_at=None), post(110.0, "n2")]),
        [
            world(
                *ARRIVED, mail=mail(KEPT),
                posts=[post(told_at=None, ended_at=109.0), post(110.0, "n2")],
            ),
            world(*ARRIVED, mail=mail(KEPT), posts=[post(told_at=None), post(115.0, "n2")]),
            world(
                *ARRIVED, mail=mail(KEPT), posts=[post(told_at=None), post(110.0, "n2")],
                troubles=trouble("freeze", 30.0, 99.0),
            ),
        ],
    ),
    # What was found while nothing was wrong
    (f"{OTHER}: nothing is wrong, and …", world(late=[f"{OTHER}: nothing is wrong, and …"]), []),
]  # fmt: skip

BUDGET = f"{BOB}: is letter 2, and the budget paid for 1.5 by then"
VANISHED = "n1: holds a connection with client1, which vanished over 900 s ago"


# ---------------------------------------------------------------------------------------- the tests


class Judged:
    """The database that the judge asks."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self._conn = conn

    def query(self, text: str, params: Any = None) -> list[tuple[Any, ...]]:
        """Ask, as `simulation.database.Database` does."""
        return self._conn.execute(text, params).fetchall()

    def put(self, *rows: Row) -> None:
        """Store rows in place of those that are there."""
        self._conn.rollback()
        for table, values in rows:
            whole = table if "." in table else f"relay.{table}"
            columns, places = ", ".join(values), ", ".join(["%s"] * len(values))
            self._conn.execute(
                f"INSERT INTO {whole} ({columns}) VALUES ({places})", [*values.values()]
            )


@pytest.fixture(scope="module")
def database(clusters: Clusters) -> Iterator[Any]:
    """A database in which nothing happens by itself, and whose `outbound_messages`, a view in life,
    has the rows that it is given."""
    cluster = clusters.get(18)
    name = cluster.new_database(TEMPLATE)
    with psycopg.connect(cluster.dsn(name)) as conn:
        conn.execute("SET session_replication_role = replica")  # no triggers, no foreign keys
        conn.execute("ALTER VIEW relay.outbound_messages RENAME TO in_life")
        conn.execute("CREATE TABLE relay.outbound_messages (LIKE relay.in_life)")
        conn.execute("CREATE SCHEMA sim")
        conn.execute("CREATE TABLE sim.read_late (address text, by double precision)")
        conn.execute(
            "CREATE FUNCTION sim.now() RETURNS timestamptz LANGUAGE sql"
            f" RETURN to_timestamp({EPOCH + NOW})"
        )
        conn.commit()
        yield Judged(conn)
        conn.rollback()
    cluster.drop_database(name)


@pytest.mark.parametrize(("said", "broken", "kept"), CASES, ids=[case[0] for case in CASES])
def test_what_is_said_of_what(database: Any, said: str, broken: Seen, kept: list[Seen]) -> None:
    """The sentence, and no other, of the history in which the promise is broken; and none of its
    neighbours."""
    for (rows, history), sentences in [(broken, [said]), *((each, []) for each in kept)]:
        database.put(*rows)
        assert judge.violations(database, history, NOW, None) == sentences


def test_letters_have_a_budget(database: Any) -> None:
    """Of those for which it had not paid the first is named; where there is none, nobody is."""
    database.put(letter(when=46.0), letter(to=BOB, when=47.0), letter(to=BOB, when=48.0))
    assert judge.violations(database, History(), NOW, 0.01) == [BUDGET]
    assert judge.violations(database, History(), NOW, None) == []
    database.put(letter(when=46.0), letter(to=BOB, when=97.0))
    assert judge.violations(database, History(), NOW, 0.01) == []


def test_one_of_a_batch_may_have_waited(database: Any) -> None:
    """Of several activations that are taken together not all can have gone first by their age."""
    another = token(3, 101), letter(when=110.0, number=13), of_token(3, 13)
    database.put(*overtaken(made=101), *another)
    assert judge.violations(database, History(), NOW, None) == [BEFORE, BEFORE]


def test_a_connection_whose_peer_has_vanished() -> None:
    """It is named after a quarter of an hour, and not when its node has closed it by then."""
    seen = World(1)
    network = Network(seen)

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(network.run)
            (listener,) = network.listen("n1", 25)
            NODE.set("client1")
            client = await network.open_tcp_stream("n1", 25)
            await trio.lowlevel.wait_readable(listener)
            sock, _ = network.accept(listener)
            await trio.sleep(1.0)
            assert network.cut(["n1"], silent=True) == 1
            await trio.sleep(judge.GIVEN_UP_AFTER - 1.0)
            assert judge.half_open(network, ["n1"], seen.now()) == []
            await trio.sleep(2.0)
            assert judge.half_open(network, ["n1"], seen.now()) == [VANISHED]
            sock.close()
            await trio.sleep(1.0)
            assert judge.half_open(network, ["n1"], seen.now()) == []
            await client.aclose()
            nursery.cancel_scope.cancel()
        listener.close()

    trio.run(live, clock=seen.clock)


def test_no_sentence_is_without_a_case() -> None:
    """Of what the module can say, all is said above."""
    provoked = [*(case[0] for case in CASES), BUDGET, VANISHED]
    unsaid = []
    modules = (judge, devices, inbound, letters, mailboxes, outbound, webhooks)
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    for node in (each for tree in trees for each in ast.walk(tree)):
        if not isinstance(node, ast.JoinedStr):
            continue
        words = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
        pattern = f".+{'.+'.join(map(re.escape, words))}.*"
        is_one = any(": " in each for each in words)  # `M-in-1: what is broken`
        if is_one and not any(re.fullmatch(pattern, sentence) for sentence in provoked):
            unsaid.append(ast.unparse(node))
    assert unsaid == []


LEASED = ("leases", {"name": "ticker", "node": uuid4(), "term": 1, "expires_at": at(561.0)})
DUE = {"id": uuid4(), "lane": 1, "priority": 1}
TOKEN = {"account": 1, "token": 1, "action": "activation"}
SENT_BLOB = {"id": 1, "recipient": bytes(32), "envelope": b"."}
TOLD = {"kind": "arrived", "subject_id": uuid4(), "signer": uuid4(), "url": "http://a.example"}
CLOSED = {"address": BOX, "is_active": False, "expires_at": at(879.0)}

LEFT: list[tuple[str, Row, list[Row]]] = [
    ("outbound", ("outbound_due", {**DUE, "run_at": at(9999.0)}),
     [("outbound_due", {**DUE, "run_at": "infinity"})]),
    ("unsummarised", ("unsummarised", {"message_id": uuid4(), "mailbox_id": uuid4(), "size": 1}),
     []),
    ("tokens", ("token_queue", {**TOKEN, "ready": True, "expires_at": EPOCH + 1001}),
     [("token_queue", {**TOKEN, "ready": True, "expires_at": EPOCH + 1000}),
      ("token_queue", {**TOKEN, "ready": False, "expires_at": EPOCH + 1001})]),
    ("blobs", ("device_inbox", {**SENT_BLOB, "expires_at": at(1001.0)}),
     [("device_inbox", {**SENT_BLOB, "expires_at": at(1000.0)})]),
    ("inboxes", ("device_inboxes", {"recipient": bytes(32), "missed": 1, "told": 0}), []),
    ("webhooks", ("webhook_events", TOLD), [("webhook_events", {**TOLD, "given_up_at": at(1.0)})]),
    ("returns", ("returns", {"raw": b"."}), []),
    ("submitters to be told", ("outbound_notices", {"message_id": uuid4(), "action": "failed"}),
     [("outbound_notices", {"message_id": uuid4(), "action": "delayed"})]),
    ("mailboxes open after their end", ("mailboxes", {**CLOSED, "is_active": True}),
     [("mailboxes", CLOSED), ("mailboxes", {"address": BOX, "expires_at": at(880.0)})]),
    ("ticker missing", ("leases", {**LEASED[1], "expires_at": at(560.0)}), []),
]  # fmt: skip
"""What is left, a row of it, and rows of which nothing is left."""


@pytest.mark.parametrize(("name", "left", "rest"), LEFT, ids=[case[0] for case in LEFT])
def test_what_has_not_come_to_rest(database: Any, name: str, left: Row, rest: list[Row]) -> None:
    """One of it is counted; what has ended is not.  A lease has been renewed since it began."""
    others = [] if left[0] == "leases" else [LEASED]
    database.put(left, *others)
    assert judge.unsettled(database, 500.0, 60.0) == {name: 1}
    for row in rest:
        database.put(row, *others)
        assert judge.unsettled(database, 500.0, 60.0) == {}
