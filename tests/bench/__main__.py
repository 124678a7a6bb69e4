"""`make bench`: every measurement, as a table for people and as JSON for machines.

Each module named in `BENCHES` has `run(rounds: int) -> dict` that returns `name`, `unit`,
`results` (variant → figures) and `ratios` (what is promised: `value`, `required` or `at_most`,
sometimes what was asked for, `aim`, and `why` it is not met).  Peers run in processes of their own,
rounds are interleaved, medians are reported.  Absolute figures belong to the machine; the ratios
are what is promised.

Exit code 1 when a required ratio is missed.  Never part of `make test`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import kept

BENCHES = (
    "db",
    "ingest",
    "processes",
    "large_slow",
    "stalls",
    "domains",
    "summary",
    "readable",
    "inbox",
    "expiry",
    "smtp_client",
    "queue",
    "outbound",
    "collector",
    "tail",
    "page",
    "lists",
    "clients",
    "devices",
    "device_sessions",
    "failover",
    "many_relays",
)


def main() -> int:
    """Run the benches asked for and report."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "benches",
        nargs="*",
        metavar="BENCH",
        help=f"of {', '.join(BENCHES)} (default: all; {__package__}.BENCH says what each measures)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--json", type=Path, default=Path("bench-results/latest.json"))
    arguments = parser.parse_args()
    if unknown := set(arguments.benches) - set(BENCHES):
        parser.error(f"no bench is named {', '.join(sorted(unknown))}")
    console = Console()
    report: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "rounds": arguments.rounds,
        "benches": [],
    }
    missed = 0
    for name in arguments.benches or BENCHES:
        module = importlib.import_module(f"tests.bench.{name}")
        console.print(f"[bold]{name}[/bold] …")
        found = module.run(arguments.rounds)
        for bench in found if isinstance(found, list) else [found]:
            report["benches"].append(bench)
            missed += show(console, bench)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    console.print(f"written to {arguments.json}")
    return 1 if missed else 0


def show(console: Console, bench: dict[str, Any]) -> int:
    """Print one bench, and return how many required ratios it misses."""
    table = Table(title=f"{bench['name']} ({bench['unit']})", title_justify="left")
    figures: dict[str, dict[str, Any]] = {
        variant: value if isinstance(value, dict) else {bench["unit"]: value}
        for variant, value in bench["results"].items()
    }
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    table.add_column("variant")
    for column in columns:
        table.add_column(column, justify="right")
    for variant, row in figures.items():
        table.add_row(variant, *(_shown(row.get(column)) for column in columns))
    console.print(table)
    missed = 0
    for ratio, entry in bench["ratios"].items():
        low, high = entry.get("required"), entry.get("at_most")
        good = kept(entry)
        missed += not good
        bound = f"at least {low}" if low is not None else f"at most {high}"
        aim = ""
        if "aim" in entry:
            met = kept({**entry, ("required" if low is not None else "at_most"): entry["aim"]})
            aim = f"; aim {entry['aim']}: {'met' if met else 'not met'}"
            if not met and "why" in entry:
                aim += f", as {entry['why']}"
        mark = "[green]ok[/green]" if good else "[red]MISSED[/red]"
        console.print(f"  {mark} {ratio}: {entry['value']:.3g} ({bound}{aim})")
    # What is promised beside a peer that cannot be run here is not shown.
    for peer, reason in bench.get("missing", {}).items():
        console.print(f"  [red]MISSED[/red] beside {peer}: {reason}")
    return missed + len(bench.get("missing", {}))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main())
