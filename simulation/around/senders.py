"""Who sends mail in, and makes mailboxes that end soon."""

from __future__ import annotations

from typing import Any

import trio

from simulation.around import Around
from simulation.around.talk import BROKEN, PATIENCE, HttpFailed, Talk, call, virtual
from simulation.history import Answer, Mail, Mailbox
from simulation.places import HOOKS, SMTP
from simulation.world import NODE


async def mail_client(around: Around, name: str, mean: float) -> None:
    """Send mail to mailboxes, one try after the other, or at once."""
    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        if not around.history.mailboxes:
            continue
        mailbox = rng.choice(around.history.mailboxes)
        if mailbox.expires_at < around.world.now() - 30:
            mailbox = rng.choice(around.history.mailboxes)
        host = around.choose(rng) if rng.random() < 0.2 else ""
        mails = []
        for _ in range(4 if host else rng.choice((1, 1, 3))):
            marker = around.marker("in")
            size = rng.choice((10, 200, 2000, 70_000))
            raw = (
                f"From: <{name}@sender.example>\r\nTo: <{mailbox.address}>\r\n"
                f"Subject: {marker}\r\n\r\n" + "Hello, your code is 123456.\r\n" * (size // 29 + 1)
            ).encode()
            mails.append(Mail(marker, mailbox.address, raw))
        async with trio.open_nursery() as nursery:
            for mail in mails:
                if host:
                    nursery.start_soon(_send_in, around, rng, mail, host)
                else:
                    await _send_in(around, rng, mail)


async def _send_in(around: Around, rng: Any, mail: Mail, host: str = "") -> None:
    mail.asked_at = around.world.now()
    around.history.mail[mail.marker] = mail
    mail.answer, said = await hand_in(around, rng, mail, host)
    mail.for_good = said.rpartition(" ")[2].startswith("5")
    mail.answered_at = around.world.now()
    around.world.tell("mail.answered", marker=mail.marker, answer=mail.answer, said=said)


async def hand_in(
    around: Around, rng: Any, mail: Mail, host: str = "", *, sender: str = "client@sender.example"
) -> tuple[Answer, str]:
    """Hand a message to a node by SMTP; returns what came of it, and the step with its reply."""
    dot, host = False, host or around.choose(rng)
    try:
        with trio.fail_after(PATIENCE):
            async with await around.network.open_tcp_stream(host, SMTP) as stream:
                talk = Talk(stream)
                if (code := await talk.reply()) != 220:
                    return Answer.REFUSED, f"greeting {code}"
                for command in (
                    b"EHLO client.example",
                    b"MAIL FROM:<%s>" % sender.encode(),
                    b"RCPT TO:<%s>" % mail.address.encode(),
                    b"DATA",
                ):
                    await talk.say(command + b"\r\n")
                    code = await talk.reply()
                    if code >= 400:
                        return Answer.REFUSED, f"{command[:4].decode()} {code}"
                body = mail.raw.replace(b"\r\n.", b"\r\n..")
                await talk.say(body)
                if rng.random() < 0.1:
                    await trio.sleep(rng.uniform(0.0, 40.0))  # the mailbox may end meanwhile
                dot = True
                await talk.say(b".\r\n")
                code = await talk.reply()
                if code == 250:
                    around.history.ids.setdefault(mail.marker, []).append(talk.last.split()[-1])
                    return Answer.KEPT, "dot 250"
                # A commit whose answer was lost is 451, and may be there.
                return (Answer.DOUBT if code < 500 else Answer.REFUSED), f"dot {code}"
    except (*BROKEN, ValueError) as error:
        return (Answer.DOUBT if dot else Answer.REFUSED), type(error).__name__


async def mailbox_maker(around: Around, name: str, mean: float) -> None:
    """Make mailboxes, most of which end soon, and look into those that have ended."""
    NODE.set(name)
    rng = around.world.rng(name)
    first = True
    while first or await around.pause(rng, mean):
        minutes = 10_000.0 if first else rng.choice((0.5, 2.0, 10.0, 10_000.0))
        first = False
        host = around.choose(rng)
        wanted: dict[str, Any] = {"ttl_minutes": minutes}
        if tells := rng.random() < 0.5:
            wanted["webhook_url"] = f"http://{HOOKS}/arrived"
        try:
            status, made = await call(around, host, "POST", "/api/v1/mailboxes", wanted)
        except HttpFailed:
            first = not around.history.mailboxes and not around.stopped.is_set()
            continue
        around.world.tell("mailbox.answered", status=status)
        if status != 201:
            first = not around.history.mailboxes and not around.stopped.is_set()
            await trio.sleep(1)
            continue
        expires_at = virtual(made["expires_at"])
        around.history.mailboxes.append(Mailbox(made["address"], expires_at, tells))
        await _look_back(around, rng)


async def _look_back(around: Around, rng: Any) -> None:
    """A mailbox whose time is over shows nothing."""
    now = around.world.now() - around.history.apart
    over = [m for m in around.history.mailboxes if m.expires_at < now]
    if not over:
        return
    mailbox = rng.choice(over)
    try:
        status, _ = await call(
            around, around.choose(rng), "GET", f"/api/v1/mailboxes/{mailbox.address}/messages"
        )
    except HttpFailed:
        return
    if status == 200:
        around.history.shown_late.append(mailbox.address)
