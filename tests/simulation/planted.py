"""Bugs that are planted in a copy of the product, for the simulation to find.

Each is one small change, of the kind that is made by mistake, and names the promise that it breaks.
`seed` is the first with which the simulation finds it: tests/simulation/test_planted.py runs that
one.  `python -m tests.simulation.planted` looks for each from seed 1 on.  Those that it has not
found so far have none: docs/simulation.md says which it has looked for.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import relay

ROOT = Path(relay.__file__).parent.parent
NODES = "2"


@dataclass(frozen=True)
class Planted:
    """One bug: in `file`, `old` (which stands there once) is replaced by `new`."""

    name: str
    file: str
    old: str
    new: str
    broken: str
    """A part of what the judge says."""
    seed: int | None = 1
    days: str = "0.01"


BUGS = (
    Planted(
        "a message is not put down to be parsed",
        "relay/mailboxes/accept.py",
        "        SELECT id, mailbox_id, size FROM stored\n        {requeue}",
        "        SELECT id, mailbox_id, size FROM stored WHERE size < 60000\n        {requeue}",
        "never summarised",
        days="0.003",
    ),
    Planted(
        "a commit whose answer was lost counts as done",
        "actors/writer.py",
        "stored = await self._look(batch, str(error))",
        "stored = set(_ids(batch))",
        "250 was said, and it is not there",
        seed=2,
    ),
    Planted(
        "the Ack goes out before the blob is stored",
        "relay/devices/push.py",
        "        await self._put(blobs, answers)\n        self._channel.post(*answers)\n",
        "        self._channel.post(*answers)\n        await self._put(blobs, answers)\n",
        "acknowledged, and its device never got it",
        seed=3,
    ),
    Planted(
        "a message is stored without a look at the mailbox's end",
        "relay/mailboxes/accept.py",
        "              AND b.is_active\n              AND b.expires_at > clock_timestamp()\n"
        "            LIMIT 1",
        "            LIMIT 1",
        "s after its end",
        seed=7,
    ),
    Planted(
        "a deferral counts as a delivery",
        "relay/outbound/states.py",
        "    return Cause.EXHAUSTED if turn >= max_attempts else Cause.DEFERRED",
        "    return Cause.EXHAUSTED if turn >= max_attempts else Cause.DELIVERED",
        "said to be sent, and nobody got it",
        seed=2,
    ),
    Planted(
        "an attempt too few",
        "relay/outbound/states.py",
        "Cause.EXHAUSTED if turn >= max_attempts else",
        "Cause.EXHAUSTED if turn >= 2 else",
        "accepted, and in the end failed",
        seed=1,
    ),
    Planted(
        "no answer after the dot counts as a delivery",
        "relay/smtp/client.py",
        "_doubt = Ruling(Verdict.UNKNOWN, True, False)",
        "_doubt = Ruling(Verdict.DELIVERED, True, False)",
        "said to be sent, and nobody got it",
        seed=2,
    ),
    Planted(
        "a claim takes what another has leased",
        "relay/db/migrations/0007_deadlines.sql",
        "              AND d.run_at <= now()",
        "              AND d.run_at <= now() + interval '10 minutes'",
        "without excuse",
        seed=8,
    ),
    Planted(
        "a letter is queued after its token was taken, and not with it",
        "relay/lifecycle/token_mailer.py",
        "            async with self.pool.transaction(patience=_TIMEOUT) as connection:\n"
        "                return await self._batch",
        "            async with self.pool.connection(patience=_TIMEOUT) as connection:\n"
        "                return await self._batch",
        "has an account and got no letter",
        seed=None,
    ),
    Planted(
        "the outcome of a delivery is given up when the database is away",
        "relay/outbound/finaliser.py",
        "                await trio.sleep(outage.lost())\n                repeated = True\n",
        "                return set()\n",
        "without excuse",
        seed=None,
    ),
    Planted(
        "the relay does not listen again when the database is back",
        "relay/db/listen.py",
        "        await trio.sleep(pause)\n",
        "        await trio.sleep(pause * 1e6)\n",
        "nothing is wrong, and it takes over",
        seed=2,
        days="0.004",
    ),
    Planted(
        "a receiver's error counts as told",
        "actors/webhooks.py",
        "        if 200 <= status < 300:",
        "        if 200 <= status < 600:",
        "arrived, and nobody was told",
        seed=5,
    ),
    Planted(
        "a webhook is given up after its first attempt",
        "actors/webhooks.py",
        "if final or event.attempt >= self._max_attempts:",
        "if final or event.attempt >= 1:",
        "arrived, and nobody was told",
        seed=2,
    ),
    Planted(
        "the lease of a webhook outlasts its node by hours",
        "relay/webhooks/store.py",
        "make_interval(secs => %(lease)s)",
        "make_interval(secs => %(lease)s * 1000)",
        "there are still",
        seed=None,
    ),
    Planted(
        "a refusal for now counts as one for good",
        "relay/smtp/client.py",
        "_later = Ruling(Verdict.DEFERRED,",
        "_later = Ruling(Verdict.FAILED,",
        "accepted, and in the end failed",
        seed=None,
    ),
    Planted(
        "trouble on the way counts as a refusal for good",
        "relay/smtp/client.py",
        "_route = Ruling(Verdict.DEFERRED,",
        "_route = Ruling(Verdict.FAILED,",
        "accepted, and in the end failed",
        seed=None,
    ),
    Planted(
        "mailboxes are closed five minutes late",
        "relay/mailboxes/expiry.py",
        "          AND expires_at <= now()\n",
        "          AND expires_at <= now() - interval '5 minutes'\n",
        "is over, and still active",
        seed=None,
    ),
    Planted(
        "a token wakes nobody",
        "relay/db/migrations/0004_lifecycle.sql",
        "    WHERE n.consumed_at IS NULL;\n    IF FOUND THEN\n"
        "        PERFORM pg_notify('token_insert', '');",
        "    WHERE n.consumed_at IS NULL;\n    IF FOUND THEN\n        PERFORM NULL;",
        "nothing is wrong, and it takes over",
        seed=None,
        days="0.003",
    ),
    Planted(
        "mail that arrives does not wake who tells of it",
        "relay/db/migrations/0003_webhooks.sql",
        "      AND m.expires_at > now();\n    IF FOUND THEN\n"
        "        PERFORM pg_notify('relay_webhooks', '');",
        "      AND m.expires_at > now();\n    IF FOUND THEN\n        PERFORM NULL;",
        "nothing is wrong, and it takes over",
        seed=None,
        days="0.003",
    ),
    Planted(
        "a claimer forgets what it was told is due",
        "actors/claimer.py",
        "                    self._book.wake(due_lane)\n",
        "                    pass\n",
        "nothing is wrong, and it takes over",
        seed=None,
        days="0.003",
    ),
    Planted(
        "an acknowledgement deletes what came after it",
        "relay/db/migrations/0005_devices.sql",
        "    USING unnest(recipients, ids) AS d (recipient, id)\n"
        "    WHERE b.recipient = d.recipient\n      AND b.id = d.id;",
        "    USING unnest(recipients, ids) AS d (recipient, id)\n"
        "    WHERE b.recipient = d.recipient\n      AND b.id >= d.id;",
        "acknowledged, and its device never got it",
        seed=None,
    ),
    Planted(
        "a claim outlasts its node by hours",
        "relay/outbound/queue.py",
        "*(claim, self.lease_timeout, lanes,",
        "*(claim, self.lease_timeout * 100, lanes,",
        "there are still",
        seed=None,
    ),
    Planted(
        "mail that a node was parsing stays its own for hours",
        "actors/summariser.py",
        "    lease_for: float = 2.0,\n",
        "    lease_for: float = 7200.0,\n",
        "there are still",
        seed=None,
    ),
)


def plant(bug: Planted, folder: Path) -> None:
    """Make a copy of the product in `folder`, with the bug in it."""
    for name in ("relay", "actors", "simulation"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    shutil.copy(ROOT / "supervisor.py", folder)
    path = folder / bug.file
    text = path.read_text()
    assert text.count(bug.old) == 1, f"{bug.name}: no longer fits {bug.file}"
    path.write_text(text.replace(bug.old, bug.new))


def found(bug: Planted, seed: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the simulation of a copy with the bug."""
    return subprocess.run(
        [sys.executable, "-m", "simulation", str(seed), "--days", bug.days, "--nodes", NODES],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )


def _look_for(bug: Planted, most: int) -> str:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "copy"
        folder.mkdir()
        plant(bug, folder)
        for seed in range(1, most + 1):
            result = found(bug, seed, folder)
            if bug.broken in result.stdout:
                return f"{bug.name}: found with seed {seed}"
            if result.returncode not in {0, 1}:
                return f"{bug.name}: seed {seed} failed: {result.stderr[-500:]}"
    return f"{bug.name}: NOT found within {most} seeds"


def main() -> None:
    """Look for all of them, or those whose names have a word."""
    parser = argparse.ArgumentParser()
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--most", type=int, default=20)
    options = parser.parse_args()
    wanted = [bug for bug in BUGS if options.word in bug.name]
    with ThreadPoolExecutor(2) as places:
        for line in places.map(lambda bug: _look_for(bug, options.most), wanted):
            print(line, flush=True)


if __name__ == "__main__":
    main()
