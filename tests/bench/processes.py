"""Two SMTP processes against one: durable messages a second, over few connections and many.

The figures are those of `tests.bench.ingest`, whose `relay` is one process and whose `relay, two
processes` is two, with `RELAY_SMTP__PROCESSES` as actors/tree.py wires it; rounds are interleaved.

What two processes gain is what the machine has cores for, beside the generator and PostgreSQL.
They share fewer commits and look-ups, which costs both sides CPU, the more so the fewer connections
there are to share them: over 20 connections a message takes almost twice as much, more than
two cores have.  So what is required is only that this price does not grow.

`with a quota` is what they would gain where there are cores: one, two and three processes, each
held to a twelfth of a core by the kernel (cgroups), so that generator and PostgreSQL have all that
they want.  It shows that nothing but the CPU limits them; it is no claim about this machine.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench import ingest
from tests.bench.proc import descendants
from tests.db.cluster import Cluster, binaries

FEW, MANY = 20, 80  # connections

QUOTA = 0.08
"""Of a core, for each process …"""
_PERIOD = 20_000
"""… in every so many microseconds."""
EACH = 16  # connections for each process
_SECONDS = 5.0  # of each measurement, about
_GROUPS = Path("/sys/fs/cgroup/cpu")  # version 1, and …
_UNIFIED = Path("/sys/fs/cgroup")  # … version 2


def run(rounds: int = 5) -> list[dict[str, Any]]:
    """Measure both, over few connections and over many; and what a quota lets through."""
    variants = ("relay", "relay, two processes")
    found = [ingest.run(rounds, variants, connections) for connections in (FEW, MANY)]
    try:
        with _held("probe", ()):
            pass
    except OSError as error:
        print(f"without quotas: no control group can be made ({error})", file=sys.stderr)
        return found
    return [*found, with_a_quota(rounds)]


@contextlib.contextmanager
def _held(name: str, processes: tuple[int, ...]) -> Iterator[None]:
    """Hold each of these processes to `QUOTA` of a core, as long as it lives.  OSError."""
    quota, old = int(QUOTA * _PERIOD), _GROUPS.is_dir()
    made: list[Path] = []
    try:
        for number, process in enumerate(processes or (0,)):
            group = (_GROUPS if old else _UNIFIED) / f"relay-bench-{os.getpid()}-{name}-{number}"
            group.mkdir()
            made.append(group)
            if old:
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
            if process:
                (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for group in made:
            deadline = time.monotonic() + 10
            while True:  # its processes have just been killed
                try:
                    group.rmdir()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


def with_a_quota(rounds: int) -> dict[str, Any]:
    """One, two and three processes, each with the same part of a core."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir, fsync=True, settings={"shared_buffers": "256MB"})
    rates: dict[str, list[float]] = {variant: [] for variant in ingest.PROCESSES}
    try:
        cluster.start()
        dsn = ingest.prepare(cluster, "bench")
        for _ in range(rounds):
            for variant, count in ingest.PROCESSES.items():
                cluster.admin("TRUNCATE relay.messages CASCADE", "bench")
                with contextlib.ExitStack() as held:
                    peer = ingest.Peer(variant, dsn)
                    try:
                        ingest.generate(peer.port, 1000, EACH * count)
                        processes = tuple(descendants(peer.process.pid))
                        assert len(processes) == count
                        held.enter_context(_held("smtp", processes))
                        seconds = ingest.generate(peer.port, 1000, EACH * count)
                        messages = int(1000 / seconds * _SECONDS)
                        rates[variant].append(
                            messages / ingest.generate(peer.port, messages, EACH * count)
                        )
                    finally:
                        peer.close()
    finally:
        cluster.remove()
    return {
        "name": f"SMTP processes with {QUOTA:.0%} of a core and {EACH} connections each",
        "unit": "messages/s",
        "results": {
            variant: {"messages/s": round(statistics.median(each), 1)}
            for variant, each in rates.items()
        },
        "ratios": {
            f"{variant} / one": {
                "value": statistics.median(
                    ours / theirs
                    for ours, theirs in zip(
                        rates[variant], rates["relay, one SMTP process"], strict=True
                    )
                ),
                "required": 0.75 * count,
                "aim": count,
            }
            for variant, count in ingest.PROCESSES.items()
            if count > 1
        },
    }


if __name__ == "__main__":
    print(run())
