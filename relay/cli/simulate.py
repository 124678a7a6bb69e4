"""`relay simulate`: the whole relay in one process, against a seeded adversary.

The simulation is a program of its own (`simulation`, beside the product), for it puts its own
clocks, chance and network in place before anything of the product is loaded: this becomes it.
"""

from __future__ import annotations

import json
import os
import sys
from math import isfinite
from pathlib import Path

import click

KINDS = (
    "kill", "freeze", "partition", "cut", "database", "stall", "doubt", "clock", "peer",
    "failover", "disk",
)  # fmt: skip
"""Faults that there are; `simulation.faults` has the same."""


def _faults(_: click.Context, __: click.Parameter, value: str) -> str:
    if value in {"all", "none"}:
        return {"all": ",".join(KINDS)}.get(value, value)
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name in {"all", "none"}:
            raise click.BadParameter(f"{name!r} stands alone")
        if name not in KINDS:
            raise click.BadParameter(f"there is no fault {name!r}; there are {', '.join(KINDS)}")
    return ",".join(names)


def _days(_: click.Context, __: click.Parameter, value: float) -> float:
    if not isfinite(value):
        raise click.BadParameter(f"{value} is no number of days")
    return value


def _plan(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        faults = json.loads(value)
    except ValueError:
        faults = None
    known = isinstance(faults, list) and all(
        isinstance(each, dict) and "at" in each and each.get("kind") in KINDS for each in faults
    )
    if not known:
        raise click.BadParameter("it is not a list of faults in JSON, as a run that failed prints")
    return value


@click.command()
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(min=0),
    required=True,
    help="What decides everything.",
)
@click.option(
    "--days",
    metavar="D",
    type=click.FloatRange(min=0, min_open=True, max=30),
    default=1.0,
    callback=_days,
    help="Virtual days with work and faults; one when left out, and 0.042 are an hour.",
)
@click.option(
    "--nodes",
    metavar="K",
    type=click.IntRange(min=1, max=10),
    default=3,
    help="Relays on the one database; three when left out.",
)
@click.option(
    "--faults",
    metavar="all|none|A,B",
    default="all",
    callback=_faults,
    help=f"Which faults there are: {', '.join(KINDS)}.",
)
@click.option(
    "--plan",
    metavar="JSON",
    callback=_plan,
    help="These faults and no others, as a run that failed has said.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write what happened, an event a line.",
)
def simulate(
    seed: int, days: float, nodes: int, faults: str, plan: str | None, trace: Path | None
) -> None:
    """Live through a day of several relays, simulated, and judge their promises.

    Clocks, chance and network are simulated, and so are faults, by the seed: the same seed is the
    same run. Ends with 0 if every promise was kept, with 1 if one was broken; the last line of the
    output is JSON.
    """
    arguments = [str(seed), "--days", str(days), "--nodes", str(nodes), "--faults", faults]
    if plan is not None:
        arguments += ["--plan", plan]
    if trace is not None:
        arguments += ["--trace", str(trace)]
    os.execv(sys.executable, [sys.executable, "-m", "simulation", *arguments])  # noqa: S606 - ourselves
