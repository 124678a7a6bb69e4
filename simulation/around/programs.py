"""Who sends through the relay: programs, by HTTP and by submission; and who signs up."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import trio

from simulation.around import Around
from simulation.around.talk import BROKEN, PATIENCE, HttpFailed, Talk, ask, call
from simulation.history import TEXT, Answer
from simulation.places import ADMIN_TOKEN, DOMAIN, LOOPBACK, SUBMISSION, SUBMITS_FROM
from simulation.world import NODE


async def program(around: Around, name: str, mean: float) -> None:
    """Send mail through the relay over HTTP, let people sign up, and recover their passwords."""
    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        host = around.choose(rng)
        does = rng.random()
        if does < 0.3:
            email = f"{around.marker('acc').lower()}@people.example"
            answer = await ask(
                around, host, "/api/v1/accounts", {"email": email, "login": email}, 201, email
            )
            around.history.accounts[email] = answer
            around.world.tell("account.answered", email=email, answer=answer)
            continue
        known = [each for each in around.history.activated if each in around.history.ids]
        if does < 0.4 and known:
            email = rng.choice(known)
            path = f"/api/v1/accounts/{around.history.ids[email][0]}/recover"
            answer = await ask(around, host, path, None, 202)
            around.history.recoveries.setdefault(email, []).append(answer)
            around.world.tell("recovery.answered", email=email, answer=answer)
            continue
        marker = around.marker("out")
        domain = rng.choice(("one.example", "two.example", "three.example"))
        to = [f"{marker.lower()}-{n}@{domain}" for n in range(rng.choice((1, 1, 1, 5)))]
        for recipient in to:
            around.history.sends[f"{marker}/{recipient}"] = Answer.DOUBT
        body = {
            "from": f"shop@{DOMAIN}",
            "to": to,
            "subject": marker,
            "text": TEXT,
            "priority": rng.choice(("high", "normal", "bulk")),
        }
        answer = await ask(around, host, "/api/v1/messages/send", body, 202, marker)
        for recipient in to:
            around.history.sends[f"{marker}/{recipient}"] = answer
        around.world.tell("send.answered", marker=marker, answer=answer)


async def submitter(around: Around, name: str, mean: float) -> None:
    """Be a program on a relay's machine that submits mail to it by SMTP."""
    NODE.set(name)
    around.network.show(name, LOOPBACK)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        marker = around.marker("out")
        domain = rng.choice(("one.example", "two.example", "three.example"))
        to = [f"{marker.lower()}-{n}@{domain}" for n in range(rng.choice((1, 1, 3)))]
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


async def person(around: Around, name: str, mean: float) -> None:
    """Open the links of letters that came, now and then one twice."""
    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        if not around.links:
            continue
        email, token = around.links.pop(rng.randrange(len(around.links)))
        for _ in range(rng.choice((1, 1, 2))):
            host = around.choose(rng)
            try:
                status, _ = await call(
                    around, host, "POST", "/api/v1/tokens/consume", {"token": token}
                )
            except HttpFailed:
                status = 0
            around.world.tell("token.answered", email=email, status=status)
            if status == 200:
                around.history.activated.append(email)
                around.history.consumed[token] += 1
            elif status not in {0, 503} and not around.history.consumed[token]:
                break  # it has expired, or what became of it before was not heard
            elif status != 400:
                around.links.append((email, token))
                break
