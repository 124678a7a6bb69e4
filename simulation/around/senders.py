"""Who sends mail in, and makes mailboxes that end soon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from simulation.around import Around
from simulation.around.readers import look_back
from simulation.around.talk import BROKEN, PATIENCE, HttpFailed, Talk, call, virtual
from simulation.history import Answer, Mail, Mailbox
from simulation.kind import QUOTA
from simulation.places import ADMIN_TOKEN, DOMAIN, HOOKS, NOBODY, SMTP
from simulation.world import NODE

_FULL = "452 4.2.2"


async def mail_client(around: Around, name: str, mean: float) -> None:
    """Send mail to mailboxes, one try after the other, or at once; some of it to several."""
    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        if not around.history.mailboxes:
            continue
        host = around.choose(rng) if rng.random() < 0.2 else ""
        transactions = []
        for _ in range(4 if host else rng.choice((1, 1, 3))):
            marker = around.marker("in")
            to = _recipients(around, rng, marker)
            raw = text(f"{name}@sender.example", to[0], marker, rng.choice((10, 200, 2000, 70_000)))
            transactions.append((marker, raw, to))
        async with trio.open_nursery() as nursery:
            for transaction in transactions:
                if host:
                    nursery.start_soon(_send_in, around, rng, *transaction, host)
                else:
                    await _send_in(around, rng, *transaction)


def text(sender: str, to: str, marker: str, size: int) -> bytes:
    """Return a message of about so many bytes."""
    return (
        f"From: <{sender}>\r\nTo: <{to}>\r\nSubject: {marker}\r\n\r\n"
        + "Hello, your code is 123456.\r\n" * (size // 29 + 1)
    ).encode()


def _recipients(around: Around, rng: Any, marker: str) -> list[str]:
    """Return for whom a message is: a mailbox or several; at times one twice, or nobody's too."""
    mailboxes = around.history.mailboxes
    to = []
    for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 2, 3))):
        mailbox = rng.choice(mailboxes)
        if mailbox.expires_at < around.world.now() - 30:
            mailbox = rng.choice(mailboxes)
        to.append(mailbox.address)
    if len(to) > 1:
        how = rng.random()
        if how < 0.25:
            to.insert(rng.randrange(len(to) + 1), rng.choice(to).upper())
        elif how < 0.5:
            to.insert(rng.randrange(len(to) + 1), f"{NOBODY}{marker.lower()}@{DOMAIN}")
    return to


async def _send_in(
    around: Around, rng: Any, marker: str, raw: bytes, to: Sequence[str], host: str = ""
) -> None:
    mails = [
        Mail(marker, address, raw, around.world.now())
        for address in dict.fromkeys(each.lower() for each in to)
    ]
    around.history.mail |= {f"{marker}/{mail.address}": mail for mail in mails}
    said = await _hand_over(around, rng, mails, to, host)
    for mail in mails:
        around.world.tell(
            "mail.answered", marker=marker, to=mail.address, answer=mail.answer, said=said
        )


async def hand_in(
    around: Around,
    rng: Any,
    mail: Mail,
    host: str = "",
    *,
    sender: str = "client@sender.example",
    lingers: float = 0.1,
) -> tuple[Answer, str]:
    """Hand a message to a node by SMTP; returns what came of it, and the step with its reply.
    `lingers`: how often it is before the dot."""
    said = await _hand_over(around, rng, [mail], [mail.address], host, sender, lingers)
    return mail.answer, said


async def _hand_over(
    around: Around,
    rng: Any,
    mails: Sequence[Mail],
    to: Sequence[str],
    host: str = "",
    sender: str = "client@sender.example",
    lingers: float = 0.1,
) -> str:
    """Hand a message over in one transaction; `to`: its recipients as they are said, `mails` has
    one of each.  Returns the last step with its reply."""
    host = host or around.choose(rng)
    whose = {mail.address.lower(): mail for mail in mails}
    for mail in mails:
        mail.answer = Answer.REFUSED
    welcome: list[Mail] = []
    try:
        with trio.fail_after(PATIENCE):
            async with await around.network.open_tcp_stream(host, SMTP) as stream:
                talk = Talk(stream)
                if (code := await talk.reply()) != 220:
                    return f"greeting {code}"
                for command in (b"EHLO client.example", b"MAIL FROM:<%s>" % sender.encode()):
                    await talk.say(command + b"\r\n")
                    if (code := await talk.reply()) >= 400:
                        return f"{command[:4].decode()} {code}"
                for address in to:
                    await talk.say(b"RCPT TO:<%s>\r\n" % address.encode())
                    code = await talk.reply()
                    mail = whose[address.lower()]
                    mail.answered_at = around.world.now()
                    mail.for_good = code >= 500
                    mail.full = talk.last.startswith(_FULL)
                    mail.welcome = code < 400
                welcome = [mail for mail in mails if mail.welcome]
                if not welcome:
                    return f"RCPT {code}"
                await talk.say(b"DATA\r\n")
                if (code := await talk.reply()) >= 400:
                    return f"DATA {code}"
                await talk.say(mails[0].raw.replace(b"\r\n.", b"\r\n.."))
                if rng.random() < lingers:
                    await trio.sleep(rng.uniform(0.0, 40.0))  # a mailbox may end meanwhile
                for mail in welcome:
                    mail.answer, mail.together = Answer.DOUBT, len(welcome) > 1
                await talk.say(b".\r\n")
                code = await talk.reply()
                for mail in welcome:
                    mail.answered_at = around.world.now()
                    # A commit whose answer was lost is 451, and may be there.
                    if code != 451:
                        mail.answer = Answer.KEPT if code == 250 else Answer.REFUSED
                    mail.for_good = code >= 500
                    mail.full = len(welcome) == 1 and talk.last.startswith(_FULL)
                if code == 250:
                    id_ = talk.last.split()[-1]
                    around.history.ids.setdefault(mails[0].marker, []).append(id_)
                    if len(welcome) == 1:
                        welcome[0].id = id_
                return f"dot {code}"
    except (*BROKEN, ValueError) as error:
        return type(error).__name__


async def mailbox_maker(around: Around, name: str, mean: float) -> None:
    """Make mailboxes, most of which end soon, and look into those that have ended.

    In worlds with a quota half of them are nobody's, for whom it holds.
    """
    NODE.set(name)
    rng = around.world.rng(name)
    first = True
    while first or await around.pause(rng, mean):
        minutes = 10_000.0 if first else rng.choice((0.5, 2.0, 10.0, 10_000.0))
        quota = QUOTA if around.world.kind.quota and not first and rng.random() < 0.5 else None
        first = False
        host = around.choose(rng)
        wanted: dict[str, Any] = {"ttl_minutes": minutes}
        if tells := rng.random() < 0.5 and quota is None:
            wanted["webhook_url"] = f"http://{HOOKS}/arrived"
        token = ADMIN_TOKEN if quota is None else ""
        try:
            status, made = await call(
                around, host, "POST", "/api/v1/mailboxes", wanted, token=token
            )
        except HttpFailed:
            first = not around.history.mailboxes and not around.stopped.is_set()
            continue
        around.world.tell("mailbox.answered", status=status)
        if status != 201:
            first = not around.history.mailboxes and not around.stopped.is_set()
            await trio.sleep(1)
            continue
        expires_at = virtual(made["expires_at"])
        around.history.mailboxes.append(Mailbox(made["address"], expires_at, tells, quota))
        await look_back(around, rng)
