"""Asks every node for everything, when all is well."""

from __future__ import annotations

from collections.abc import Callable

import trio

from simulation.around import Around
from simulation.around.senders import hand_in
from simulation.around.talk import ask, call, virtual
from simulation.history import TEXT, Answer, Mail, Mailbox
from simulation.places import DOMAIN, HOOKS
from simulation.world import NODE

SOON = 1.0
"""Virtual seconds in which what was accepted is delivered, when nothing is wrong."""
PROBES = 3
"""How often each node is asked for that."""


async def probe(around: Around, is_open: Callable[[str], bool]) -> None:
    """When nothing is wrong any more: ask each node for everything a few times, and put down what
    it refuses or takes long for.  A sweep would find the same, but rarely that soon.  `is_open`:
    whether a mailbox is marked as one that takes mail."""
    NODE.set("probe")
    rng = around.world.rng("probe")
    history = around.history
    short: list[Mailbox] = []
    for host in list(around.hosts) * PROBES:
        email = f"{around.marker('acc').lower()}@people.example"
        answer = await ask(around, host, "/api/v1/accounts", {"email": email, "login": email}, 201)
        history.accounts[email] = answer
        await _soon(around, email, answer, lambda: {copy.recipient for copy in history.copies})

        marker = around.marker("out")
        # To a domain whose mail must be secured, where that is asked for.
        to = "probe@two.example" if around.world.kind.direct else "probe@one.example"
        body = {"from": f"shop@{DOMAIN}", "to": [to], "subject": marker}
        answer = await ask(around, host, "/api/v1/messages/send", body | {"text": TEXT}, 202)
        history.sends[f"{marker}/{to}"] = answer
        await _soon(around, marker, answer, lambda: {copy.marker for copy in history.copies})

        hook = f"http://{HOOKS}/arrived"
        status, made = await call(
            around, host, "POST", "/api/v1/mailboxes", {"ttl_minutes": 10_000, "webhook_url": hook}
        )
        if status != 201:
            history.late.append(f"{host}: nothing is wrong, and a mailbox is refused with {status}")
            continue
        history.mailboxes.append(Mailbox(made["address"], virtual(made["expires_at"]), tells=True))
        marker = around.marker("in")
        raw = f"To: <{made['address']}>\r\nSubject: {marker}\r\n\r\nSoon.\r\n".encode()
        mail = history.mail[marker] = Mail(marker, made["address"], raw)
        mail.answer, _ = await hand_in(around, rng, mail)
        await _soon(around, marker, mail.answer, lambda: set(history.told))

        status, made = await call(around, host, "POST", "/api/v1/mailboxes", {"ttl_minutes": 0.5})
        if status == 201:
            short.append(Mailbox(made["address"], virtual(made["expires_at"])))
    for mailbox in short:
        await trio.sleep(max(0.0, mailbox.expires_at + history.apart + SOON - around.world.now()))
        if is_open(mailbox.address):
            history.late.append(f"{mailbox.address}: nothing is wrong, and it is closed late")


async def _soon(around: Around, what: str, answer: Answer, seen: Callable[[], set[str]]) -> None:
    """Wait until something is seen, and put down if it was refused or is late."""
    began = around.world.now()
    if answer is not Answer.KEPT:
        around.history.late.append(f"{what}: nothing is wrong, and the answer is {answer}")
        return
    with trio.move_on_after(SOON):
        while what not in seen():  # noqa: ASYNC110 - virtual time, of many sources
            await trio.sleep(0.05)
    took = around.world.now() - began
    around.world.tell("probe.took", what=what, seconds=round(took, 2))
    if what not in seen():
        around.history.late.append(f"{what}: nothing is wrong, and it takes over {SOON:g} s")
