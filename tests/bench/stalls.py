"""What a thousand sessions that stall in their TLS handshake cost, and how long others wait.

At each door that TLS has (`tests.stalling`), in turn: a thousand peers send a ClientHello, hear the
relay's half of the handshake and say no more.  Before and meanwhile three others send mail:

- `mail`: over one session in clear to a mailbox, from MAIL to the 250 after COMMIT;
- `submitted`: over one session in TLS to the queue, likewise;
- `newcomer`: somebody who connects, begins TLS, says EHLO again and leaves, each time anew: who
  shakes hands feels first what handshakes of others take.

The ratios are the time of one of them beside the stalled, over its time on the same relay just
before and afterwards; `memory` is resident, of the relay's own process, for all thousand.
"""

from __future__ import annotations

import smtplib
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.certificates import write
from tests.relay_process import RelayProcess
from tests.stalling import DOORS, address_of, many_files, resident, settings, stall

STALLED = 1000
MAILS = 400  # of each, a measurement
_MIB = 1024 * 1024
_ANYONE = ssl.create_default_context()
_ANYONE.check_hostname, _ANYONE.verify_mode = False, ssl.CERT_NONE
_TEXT = b"Subject: x\r\n\r\nx\r\n"
_LATER = b"X-Relay-Send-At: 2099-01-01T00:00:00Z\r\n"


@contextmanager
def _others(relay: RelayProcess) -> Iterator[dict[str, Callable[[], object]]]:
    """What the others do, each with a session that stays open."""
    box = relay.create_mailbox()

    def come() -> None:
        with smtplib.SMTP(*relay.smtp, timeout=30) as client:
            client.starttls(context=_ANYONE)
            client.ehlo()

    with (
        smtplib.SMTP(*relay.smtp, timeout=30) as plain,
        smtplib.SMTP(*address_of(relay, "submission"), timeout=30) as program,
    ):
        program.starttls(context=_ANYONE)
        program.login("bench", relay.run["admin_token"])
        yield {
            "mail": lambda: plain.sendmail("a@b.example", [box], _TEXT),
            "submitted": lambda: program.sendmail("a@b.example", ["c@y.example"], _LATER + _TEXT),
            "newcomer": come,
        }


def _times(others: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Let them send in turn; the seconds that each took, sorted."""
    took: dict[str, list[float]] = {name: [] for name in others}
    for number in range(MAILS):
        for name, send in others.items():
            if name == "newcomer" and number % 4:
                continue
            began = time.monotonic()
            send()
            took[name].append(time.monotonic() - began)
    return {name: sorted(each) for name, each in took.items()}


def run(rounds: int = 5) -> dict[str, Any]:
    """Every door, `rounds` times; medians."""
    figures: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder, many_files():
            # A relay for each door: what another left in its heap would hide what this one takes.
            for door in DOORS:
                env = settings(write(Path(folder)), 2 * STALLED)
                with RelayProcess(Path(folder) / door, env=env) as relay, _others(relay) as others:
                    _times(others)
                    quiet = _times(others)
                    before = resident(relay.pid)
                    context = ssl.create_default_context()
                    with ExitStack() as stack:
                        for _ in range(STALLED):
                            stack.enter_context(stall(relay, door, context))
                        memory = resident(relay.pid) - before
                        beside = _times(others)
                    again = _times(others)
                found = {"memory, MiB": memory / _MIB}
                for name, each in beside.items():
                    alone = sorted(quiet[name] + again[name])
                    for quantile, at in (("p50", 0.5), ("p99", 0.99)):
                        theirs, ours = (one[int(len(one) * at)] for one in (each, alone))
                        found[f"{name} {quantile}, ms"] = theirs * 1e3
                        found[f"{name} {quantile} / alone"] = theirs / ours
                figures.setdefault(door, []).append(found)
    medians = {
        door: {what: statistics.median(one[what] for one in each) for what in each[0]}
        for door, each in figures.items()
    }
    ratios: dict[str, Any] = {}
    for door, found in medians.items():
        ratios[f"memory, MiB, {door}"] = {"value": found["memory, MiB"], "at_most": 100e6 / _MIB}
        for what in [what for what in found if what.endswith("alone")]:
            most = 1.3 if "p50" in what else 2.0
            ratios[f"{what}, {door}"] = {"value": found.pop(what), "at_most": most}
    return {
        "name": f"{STALLED} TLS handshakes that stall",
        "unit": "ms and MiB",
        "results": medians,
        "ratios": ratios,
    }


if __name__ == "__main__":
    print(run(1))
