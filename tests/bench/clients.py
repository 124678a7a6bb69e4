"""A test suite on the Python client: 1,000 tests, each with an inbox and a mail of its own.

In a process of pytest's and in eight by pytest-xdist, against one relay.  A test makes its inbox,
sends a mail with a code of its own over SMTP, waits for it and looks whether it is the only one.
The time is what a developer waits: from the 250 until the message is in the test's hands.

Tests that do nothing else fill two cores eight times over, and then wait for each other's pytest;
so eight are also timed with `WORK` seconds asleep in each test, as one waits for a browser or a
database.  A sleep takes no CPU: what is promised of those is said of a machine that has some left.
How it is where the application's own work takes some, too, the last variant shows: of the same
seconds it computes for `COMPUTING`, in the test's process and in one piece.

How far the waiting of those that fill the machine can fall is bounded by what a test costs, which
is measured beside it, from the first test of a process to its last: the CPU of its own process
(pytest, httpx, smtplib), the CPU of the relay with its parser and PostgreSQL, and how busy the
machine is with the two.  Where that is 1, a test of eight takes 8 times the sum of both divided by
the cores, and its wait for mail the same part of that as it has of a test that is alone.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.proc import cpu_seconds, descendants
from tests.clients.own_suite import PLUGIN
from tests.relay_process import RelayProcess

TESTS = 1000
WORK, COMPUTING = 0.35, 0.05
"""Seconds that a test does something else, and those of them for which it computes in the last."""
ASLEEP = f"8 at once, {WORK:g} s asleep"
VARIANTS = (
    ("1 at once", 1, 0.0, 0.0),
    ("8 at once", 8, 0.0, 0.0),
    (ASLEEP, 8, 0.0, WORK),
    (
        f"8 at once, {COMPUTING:g} s computing, {WORK - COMPUTING:g} s asleep",
        8,
        COMPUTING,
        WORK - COMPUTING,
    ),
)
"""Name, processes, seconds that a test computes and sleeps before its mail is sent."""
CLIENT = Path(__file__).parents[2] / "clients" / "python" / "src"

_SUITE = """
import os
import smtplib
import time
from pathlib import Path

import pytest

TIMES = Path(os.environ["TIMES"]) / os.environ.get("PYTEST_XDIST_WORKER", "alone")


@pytest.mark.parametrize("number", range({tests}))
def test_sign_up(number, relay, inbox, smtp_server):
    code = str(100_000 + number)
    until = time.process_time() + {computing}
    while time.process_time() < until:
        pass
    time.sleep({asleep})
    with smtplib.SMTP(smtp_server.host, smtp_server.port) as smtp:
        text = f"Subject: Welcome\\r\\n\\r\\nYour code is {{code}}.\\r\\n"
        smtp.sendmail("shop@shop.example", inbox.address, text)
        told = time.perf_counter()
        message = inbox.wait(subject="Welcome", timeout=30)
        took = time.perf_counter() - told
    assert message.code == code
    assert [one.id for one in inbox.messages()] == [message.id]
    with TIMES.open("a") as file:
        print(took, relay.url, time.process_time(), time.monotonic(), file=file)
"""


def run(rounds: int) -> dict[str, Any]:
    """Run the suite in one process and in eight, and say what its tests waited for their mail."""
    found: dict[str, list[dict[str, float]]] = {}
    failed = 0
    for _ in range(rounds):
        for name, workers, computing, asleep in VARIANTS:
            with (
                tempfile.TemporaryDirectory() as name_of_folder,
                RelayProcess((folder := Path(name_of_folder)) / "relay") as relay,
            ):
                env = {"RELAY_URL": relay.run["http"], "RELAY_TOKEN": relay.run["admin_token"]}
                before = {pid: cpu_seconds(pid) for pid in [relay.pid, *descendants(relay.pid)]}
                figures, bad, _ = suite(
                    folder, workers, computing=computing, asleep=asleep, env=env
                )
                now = {pid: cpu_seconds(pid) for pid in [relay.pid, *descendants(relay.pid)]}
            spent = sum(seconds - before.get(pid, 0.0) for pid, seconds in now.items())
            figures["relay's CPU"] = spent / TESTS * 1000
            costs = (figures["test's CPU"] + figures["relay's CPU"]) / 1000
            figures["busy"] = figures.pop("rate") * costs / len(os.sched_getaffinity(0))
            failed += bad
            found.setdefault(name, []).append(figures)
    results = {
        name: {key: statistics.median(one[key] for one in taken) for key in taken[0]}
        for name, taken in found.items()
    }
    eight, alone = results[ASLEEP], results["8 at once"]
    return {
        "name": "clients",
        "unit": "ms from 250 to the test",
        "results": results,
        "ratios": {
            "tests that failed": {"value": failed, "at_most": 0},
            f"median of {ASLEEP}, ms": {"value": eight["median"], "at_most": 10},
            f"p99 of {ASLEEP}, ms": {"value": eight["p99"], "at_most": 50},
            "median of 8 at once, ms": {
                "value": alone["median"],
                "at_most": 20,
                "aim": 10,
                "why": "what waits is the tests themselves, for two cores",
            },
            "p99 of 8 at once, ms": {"value": alone["p99"], "at_most": 50},
        },
    }


def suite(
    folder: Path,
    workers: int,
    *options: str,
    computing: float = 0.0,
    asleep: float = 0.0,
    env: dict[str, str] | None = None,
) -> tuple[dict[str, float], int, set[str]]:
    """Run it in so many processes; return figures, how many failed, and the relays they were at.

    Each test computes and sleeps for so many seconds.  `options` are pytest's, `env` is for it:
    which relay, say; one is started by the plug-in else.
    """
    (folder / "times").mkdir()
    (folder / "test_suite.py").write_text(
        _SUITE.format(tests=TESTS, computing=computing, asleep=asleep)
    )
    others = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", *PLUGIN),
            *("-p", "no:cacheprovider", "-p", "no:schemathesis", "--rootdir", folder, folder),
            *(["-n", str(workers)] if workers > 1 else []),
            *options,
        ],
        env=others | {"PYTHONPATH": str(CLIENT), "TIMES": str(folder / "times")} | (env or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.monotonic() - began
    lines = "".join(file.read_text() for file in (folder / "times").iterdir()).splitlines()
    rows = [line.split() for line in lines]
    times = sorted(float(row[0]) * 1000 for row in rows)
    if not times:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    # A test that passed has told its time; that a worker or an inbox's end failed, pytest's status.
    bad = max(TESTS - len(times), int(done.returncode != 0))
    if bad:
        print(re.sub(r"(?s).*= FAILURES", "= FAILURES", done.stdout)[:4000])
    figures = {
        "median": times[len(times) // 2],
        "p99": times[int(len(times) * 0.99)],
        "longest": times[-1],
        "tests/s": TESTS / took,
        **_running(folder / "times"),
    }
    return figures, bad, {row[1] for row in rows}


def _running(folder: Path) -> dict[str, float]:
    """What tests cost and how many end in a second, without what it takes to start and to end."""
    spent, rate, count = 0.0, 0.0, 0
    for file in folder.iterdir():
        rows = [line.split() for line in file.read_text().splitlines()]
        between = len(rows) - 1  # from the end of the first one on
        if between:
            spent += float(rows[-1][2]) - float(rows[0][2])
            rate += between / (float(rows[-1][3]) - float(rows[0][3]))
            count += between
    return {"test's CPU": spent / max(count, 1) * 1000, "rate": rate}
