"""Why mail is held back, of real peers and a real DNS, as the API and the command line tell it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trio

from relay.outbound.pacing.held_back import SAYS, Why
from tests.cli.command import cli
from tests.eventually import eventually_sync
from tests.faults.outbound import ways_out
from tests.outbound.sink import Session
from tests.relay_process import RelayProcess

DOMAINS = [
    "mute.test", "hangs.test", "stalls.test", "slow.test", "busy.test", "angry.test",
    "tired.test", "cramped.test", "roomy.test", "silent.dns.test",
]  # fmt: skip
MANY = 100
RULES = """
[provider.big]
domains = ["angry.test", "tired.test"]

[[provider.big.replies]]
code = 421
text = "too much"
suspend = "2h"

[provider.narrow]
domains = ["cramped.test", "roomy.test"]

[[provider.narrow.replies]]
code = 450
slow = "2h"
"""
WHY = {
    "mute.test": (Why.SILENT, "connect: no answer for "),
    "hangs.test": (Why.HANGING, "dot: no answer for "),
    "stalls.test": (Why.HANGING, "data: no answer for "),
    "slow.test": (Why.SLOW, "1.5 s at the dot"),
    "busy.test": (Why.DEFERRING, "rcpt: 451 4.3.2 too busy"),
    "angry.test": (Why.SUSPENDED, "421 4.7.0 too much from you"),
    "silent.dns.test": (Why.NO_DNS, None),
}


async def misbehave(session: Session, verb: str, line: str) -> bytes | None:
    """Each address of loopback in its own way: those of `DOMAINS`, in turn."""
    assert isinstance(session.stream, trio.SocketStream)
    host = session.stream.socket.getsockname()[0]
    match DOMAINS[int(host.rpartition(".")[2]) - 2], verb:
        case ("mute.test", "connect") | ("hangs.test", "dot") | ("stalls.test", "DATA"):
            await trio.sleep_forever()
        case "slow.test", "dot":
            await trio.sleep(1.5)
        case "busy.test", "RCPT":
            return b"451 4.3.2 too busy\r\n"
        case "angry.test", "RCPT":
            return b"421 4.7.0 too much from you\r\n"
        case "cramped.test", "RCPT":
            return b"450 4.7.0 slower, admin\r\n"
    return None


async def test_each_reason_is_told_apart_and_to_whom_it_concerns(tmp_path: Path) -> None:
    """By the API and in the terminal: why, since when, until when and what was said; to an owner
    what holds back his own mail, and no word that was replied to others'."""
    rules = tmp_path / "traffic.toml"
    rules.write_text(RULES)
    async with ways_out("mx", misbehave, DOMAINS[:-1]) as way:
        relay = RelayProcess(
            tmp_path / "relay",
            env={
                "RELAY_OUTBOUND__UPSTREAM": way.upstream,
                "RELAY_OUTBOUND__SHAPING": str(rules),
                **way.env,
            },
        )
        await trio.to_thread.run_sync(relay.start)
        try:
            await trio.to_thread.run_sync(look, relay)
        finally:
            relay.kill()  # it would wait for those that hang


def look(relay: RelayProcess) -> None:
    """Queue mail to each, and see what is told of it."""
    with relay.http() as api:

        def send(domain: str, count: int = 1, **headers: str) -> None:
            for number in range(count):
                letter = {"from": "a@relay.localhost", "to": [f"x{number}@{domain}"], "text": "t"}
                answer = api.post("/api/v1/messages/send", json=letter, headers=headers)
                answer.raise_for_status()

        def seen(**headers: str) -> dict[str, dict[str, Any]]:
            """The first that is told of each domain."""
            found: dict[str, dict[str, Any]] = {}
            for domain in WHY:
                answer = api.get(
                    "/api/v1/queue/destinations", params={"domain": domain}, headers=headers
                )
                for one in answer.raise_for_status().json()[:1]:
                    found[domain] = one
            return found

        began = datetime.now(UTC)
        for domain in WHY.keys() - {"slow.test"}:
            send(domain)
        send("slow.test", MANY)
        found = eventually_sync(
            seen,
            "each is told of, for what it does",
            until=lambda found: (
                {name: one["why"] for name, one in found.items()}
                == {name: why for name, (why, _) in WHY.items()}
            ),
        )
        for domain, (why, reason) in WHY.items():
            one = found[domain]
            assert one["says"] == SAYS[why]
            assert (one["reason"] or "").startswith(reason or "")
            assert began <= datetime.fromisoformat(one["since"])
            assert domain in {one["domain"], *one["domains"]}
        angry = found["angry.test"]
        assert datetime.fromisoformat(angry["until"]) > began + timedelta(hours=2)
        assert angry["rule"] == "big:5"

        shown = cli("queue", "destinations", "--data-dir", relay.data_dir).stdout.decode()
        for why, reason in WHY.values():
            assert f"{why}: {SAYS[why]}" in shown or f"{why} (big:5): {SAYS[why]}" in shown
            assert (reason or "") in shown

        waits = api.get("/api/v1/outbound", params={"domain": "mute.test"}).json()[0]["id"]
        story = cli("queue", "show", waits, "--data-dir", relay.data_dir).stdout.decode()
        assert re.search(rf"held back: +{Why.SILENT}: {SAYS[Why.SILENT]}; connect: no", story)

        key = api.post("/api/v1/keys", json={"owner": "someone", "scopes": ["send"]}).json()
        mine = {"Authorization": f"Bearer {key['token']}"}
        assert seen(**mine) == {}

        def slowed(**headers: str) -> list[dict[str, Any]]:
            answer = api.get("/api/v1/queue/destinations", headers=headers).raise_for_status()
            return [one for one in answer.json() if one["why"] == Why.SLOWED]

        send("cramped.test")
        (one,) = eventually_sync(slowed, "it is slowed", until=bool)
        assert (one["route"], one["rule"], one["domains"]) == (
            "narrow", "narrow:13", ["cramped.test"],
        )  # fmt: skip
        assert one["reason"] == "slowed to 50%: 450 4.7.0 slower, admin"
        assert slowed(**mine) == []
        send("roomy.test", 1, **mine)
        (one,) = eventually_sync(
            lambda: slowed(**mine), "an owner is told, of his own domains", until=bool
        )
        assert (one["domains"], one["reason"]) == (["roomy.test"], "slowed to 50%: 450")
        for domain in ("mute.test", "angry.test"):
            send(domain, 1, **mine)
        theirs = eventually_sync(
            lambda: seen(**mine), "what is before its own is told", until=lambda n: len(n) == 2
        )
        assert {
            name: (one["why"], one["reason"].partition(" for ")[0]) for name, one in theirs.items()
        } == {
            "mute.test": (Why.SILENT, "connect: no answer"),
            "angry.test": (Why.SUSPENDED, "421"),
        }
