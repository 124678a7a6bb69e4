"""Two SMTP processes against one: durable messages a second, over few connections and many.

The figures are those of `tests.bench.ingest`, whose `relay` is one process and whose `relay, two
processes` is two, with `RELAY_SMTP__PROCESSES` as actors/tree.py wires it; rounds are interleaved.

What two processes gain is what the machine has cores for, beside the generator and PostgreSQL.
They share fewer commits and look-ups, which costs both sides CPU, the more so the fewer connections
there are to share them: over 20 connections a message takes almost twice as much, more than
two cores have.  So what is required is only that this price does not grow.
"""

from __future__ import annotations

from typing import Any

from tests.bench import ingest

FEW, MANY = 20, 80  # connections


def run(rounds: int = 3) -> list[dict[str, Any]]:
    """Measure both, over few connections and over many."""
    variants = ("relay", "relay, two processes")
    return [ingest.run(rounds, variants, connections) for connections in (FEW, MANY)]


if __name__ == "__main__":
    print(run())
