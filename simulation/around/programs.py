"""Who sends through the relay: programs, by HTTP and by submission."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import trio

from simulation.around import Around
from simulation.around.talk import BROKEN, PATIENCE, HttpFailed, Talk, ask, call, instant
from simulation.history import ACTIVATION, RECOVERY, SUPPRESS, TEXT, Answer, Wish
from simulation.places import ADMIN_TOKEN, DOMAIN, LOOPBACK, NOBODY, SUBMISSION, SUBMITS_FROM
from simulation.world import NODE

_DOMAINS = ("one.example", "two.example", "three.example")
_LATER = (5.0, 30.0, 300.0)
"""Seconds for which mail waits that is not to go at once, at most."""
_BACK_WITHIN = 400.0  # seconds after which mail goes to who is suppressed by then
_TIMES = 4
"""How often is asked again, with a key, for what nobody has answered."""
_REMEMBERED = 8
"""Messages with a key that a program has at hand, to ask for them again."""


async def program(around: Around, name: str, mean: float) -> None:
    """Send mail through the relay over HTTP, let people sign up, and recover their passwords."""
    NODE.set(name)
    rng = around.world.rng(name)
    keyed: list[tuple[str, dict[str, Any]]] = []
    while await around.pause(rng, mean):
        host = around.choose(rng)
        does = rng.random()
        if does < 0.22:
            email = f"{around.marker('acc').lower()}@people.example"
            answer = await ask(
                around, host, "/api/v1/accounts", {"email": email, "login": email}, 201, email
            )
            around.history.accounts[email] = answer
            around.world.tell("account.answered", email=email, answer=answer)
            continue
        asks, action = ("resend", ACTIVATION) if does < 0.26 else ("recover", RECOVERY)
        known = [
            email
            for email in around.history.accounts
            if email in around.history.ids
            and (email in around.history.activated) == (action == RECOVERY)
        ]
        if does < 0.34 and known:
            email = rng.choice(known)
            path = f"/api/v1/accounts/{around.history.ids[email][0]}/{asks}"
            answer = await ask(around, host, path, None, 202)
            around.history.asked.setdefault(email, []).append((action, answer))
            around.world.tell("letter.answered", email=email, asks=asks, answer=answer)
            continue
        if does > 0.9 and keyed:
            gone = {each.recipient for each in around.history.reports if each.what in SUPPRESS}
            theirs = [each for each in keyed if not gone.isdisjoint(each[1]["to"])]
            marker, body = rng.choice(theirs or keyed)
            if rng.random() < 0.4:
                await _send_another(around, host, marker, body)
            else:
                await _send(around, host, marker, body, marker)
            continue
        marker = around.marker("out")
        to, send_at = _to_whom(around, rng, marker)
        body = {
            "from": f"shop@{DOMAIN}",
            "to": to,
            "subject": marker,
            "text": TEXT,
            "priority": rng.choice(("high", "normal", "bulk")),
        }
        wish = around.history.wishes[marker] = Wish(around.world.now())
        if send_at:
            wish.send_at, body["send_at"] = send_at, instant(send_at)
        if rng.random() < 0.2:
            wish.holds, body["unknown_outcome"] = True, "hold"
        around.history.sends |= {f"{marker}/{recipient}": Answer.DOUBT for recipient in to}
        key = marker if rng.random() < 0.5 else ""
        if key:
            keyed.append((marker, body))
            del keyed[:-_REMEMBERED]
        for _ in range(_TIMES if key else 1):
            if await _send(around, host, marker, body, key) is not Answer.DOUBT:
                break
            host = around.choose(rng)


def _to_whom(around: Around, rng: Any, marker: str) -> tuple[list[str], float]:
    """Return the recipients of a message, and when it is to be sent; 0: at once.

    Where servers report of what they took, some are those of whom a server has said that they are
    not to be written to, or is about to: who writes to these does so for later.
    """
    now = around.world.now()
    reported = [each for _, each in around.coming_back if each.what in SUPPRESS]
    before = [each for each in around.history.reports if each.what in SUPPRESS]
    how = rng.random()
    if how < 0.2 and reported:
        return [rng.choice(reported).recipient], round(now + rng.uniform(30.0, _BACK_WITHIN), 3)
    if 0.2 < how < 0.3 and before:
        return [rng.choice(before).recipient], 0.0
    domain = rng.choice(_DOMAINS)
    to = [f"{marker.lower()}-{n}@{domain}" for n in range(rng.choice((1, 1, 1, 5)))]
    if how > 0.85:
        return to, round(now + rng.random() * rng.choice(_LATER), 3)
    return to, 0.0


async def _send(around: Around, host: str, marker: str, body: dict[str, Any], key: str) -> Answer:
    """Ask a node to send a message, and put down what it said."""
    history = around.history
    status, ids = await _asked(around, host, body, key)
    if status == 202:
        answer = Answer.KEPT
        history.wishes[marker].ids[ids] = None
        history.ids.setdefault(marker, []).extend(ids)
    else:  # "unavailable" may have been said of a commit whose answer was lost
        answer = Answer.REFUSED if 0 < status < 500 else Answer.DOUBT
    if status == 422:
        for recipient in body["to"]:
            history.suppressed.setdefault(recipient, around.world.now())
    said = history.wishes[marker].said
    said.append(answer)
    if Answer.KEPT in said or Answer.DOUBT in said:
        answer = Answer.KEPT if Answer.KEPT in said else Answer.DOUBT
    history.sends |= {f"{marker}/{recipient}": answer for recipient in body["to"]}
    around.world.tell("send.answered", marker=marker, answer=said[-1], status=status)
    return said[-1]


async def _send_another(around: Around, host: str, marker: str, body: dict[str, Any]) -> None:
    """Ask a node to send another text with a message's key, which was answered."""
    wish = around.history.wishes[marker]
    if Answer.KEPT in wish.said:
        status, _ = await _asked(around, host, body | {"text": f"{TEXT} Or not."}, marker)
        wish.other.append(status)
        around.world.tell("send.answered", marker=marker, answer="another text", status=status)


async def _asked(
    around: Around, host: str, body: dict[str, Any], key: str
) -> tuple[int, tuple[str, ...]]:
    try:
        status, made = await call(around, host, "POST", "/api/v1/messages/send", body, key=key)
    except HttpFailed:
        return 0, ()
    return status, tuple(one["id"] for one in made["messages"]) if status == 202 else ()


async def submitter(around: Around, name: str, mean: float) -> None:
    """Be a program on a relay's machine that submits mail to it by SMTP."""
    NODE.set(name)
    around.network.show(name, LOOPBACK)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        marker = around.marker("out")
        domain = rng.choice(_DOMAINS)
        to = [f"{marker.lower()}-{n}@{domain}" for n in range(rng.choice((1, 1, 3)))]
        if rng.random() < 0.25:
            to[-1] = f"{NOBODY}{to[-1]}"
        sender = around.history.submitters[marker] = f"{marker.lower()}@{SUBMITS_FROM}"
        around.history.sends |= {f"{marker}/{recipient}": Answer.DOUBT for recipient in to}
        answer, said = await _submit(around, around.choose(rng), marker, sender, to)
        around.history.sends |= {f"{marker}/{recipient}": answer for recipient in to}
        around.world.tell("submission.answered", marker=marker, answer=answer, said=said)


async def _submit(
    around: Around, host: str, marker: str, sender: str, to: Sequence[str]
) -> tuple[Answer, str]:
    login = base64.b64encode(f"\0{marker}\0{ADMIN_TOKEN}".encode())
    commands = [b"EHLO program.example", b"AUTH PLAIN " + login]
    commands.append(b"MAIL FROM:<%s>" % sender.encode())
    commands += [b"RCPT TO:<%s>" % recipient.encode() for recipient in to]
    raw = f"From: <{sender}>\r\nSubject: {marker}\r\n\r\n{TEXT}\r\n".encode()
    dot = False
    try:
        with trio.fail_after(PATIENCE):
            async with await around.network.open_tcp_stream(host, SUBMISSION) as stream:
                talk = Talk(stream)
                if (code := await talk.reply()) != 220:
                    return Answer.REFUSED, f"greeting {code}"
                for command in (*commands, b"DATA"):
                    await talk.say(command + b"\r\n")
                    if (code := await talk.reply()) >= 400:
                        return Answer.REFUSED, f"{command[:4].decode()} {code}"
                await talk.say(raw)
                dot = True
                await talk.say(b".\r\n")
                code = await talk.reply()
                if code == 250:
                    ids = talk.last.split()[-1].split(",")
                    around.history.ids.setdefault(marker, []).extend(ids)
                    return Answer.KEPT, "dot 250"
                # Behind the dot 451 is said of what nobody knows, and of nothing else.
                return (Answer.DOUBT if code == 451 else Answer.REFUSED), f"dot {code}"
    except (*BROKEN, ValueError) as error:
        return (Answer.DOUBT if dot else Answer.REFUSED), type(error).__name__
