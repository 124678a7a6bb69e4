"""The tree as data: who runs, in which order, and what a subset needs."""

import math
import re
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.fernet import Fernet

from actors import tree as tree_module
from actors.commands import FORMER
from actors.messages import Report, SweepNow
from actors.resources import Resources
from actors.tree import ROLES, build_tree, wire
from relay.cli.actor import actor
from relay.datadir import DataDir
from relay.db import channels
from relay.db.listen import AWAITED_FOR, Hub
from relay.db.pool import Pool
from relay.devices.noise import KeyPair
from relay.errors import ConfigError
from relay.keyring import Keyring
from relay.log import LogRing
from relay.ports.certificate import Certificate
from relay.ports.proxy import networks
from relay.settings import Settings, load
from relay.webhooks.post import NotPosted
from supervisor import ChildSpec, Strategy, Supervisor, SupervisorSpec
from tests.docs.pages import README
from tests.docs.tables import picture

DSN = "host=/nowhere dbname=relay"


def built(
    settings: Settings,
    only: frozenset[str] | None = None,
    page_url: str = "http://127.0.0.1:8025",
    certificate: Certificate | None = None,
    hub: Hub | None = None,
) -> SupervisorSpec:
    """The tree of a process with these settings and roles."""
    resources = Resources(
        supervisor=Supervisor(),
        server=None,
        dsn=DSN,
        listen_dsn=DSN,
        pool=Pool(DSN),
        hub=hub or Hub(),
        smtp_sockets=(),
        lmtp_sockets=(),
        submission_sockets=(),
        submission_tls_sockets=(),
        pop3_sockets=(),
        pop3_tls_sockets=(),
        http_sockets=(),
        push_sockets=(),
        receive_sockets=(),
        device_key=KeyPair.generate() if only is None or "devices" in only else None,
        data_dir=Path("none"),
        admin_token_hash=b"",
        keyring=Keyring(DataDir(Path("none")), "5a" * 32, Fernet.generate_key().decode()),
        logs=LogRing(),
        page_url=page_url,
        certificate=certificate,
    )
    return build_tree(wire(settings, resources, only=only))


def walk(spec: SupervisorSpec | ChildSpec, depth: int = 0) -> Iterator[tuple[int, str]]:
    """Every node under `spec` with its depth, in start order."""
    yield depth, spec.name
    for child in spec.children if isinstance(spec, SupervisorSpec) else ():
        yield from walk(child, depth + 1)


def leaves(spec: SupervisorSpec | ChildSpec) -> Iterator[ChildSpec]:
    """The actors, in start order."""
    if isinstance(spec, ChildSpec):
        yield spec
    else:
        for child in spec.children:
            yield from leaves(child)


def names(
    settings: Settings,
    only: frozenset[str] | None = None,
    page_url: str = "http://127.0.0.1:8025",
) -> list[str]:
    """The actors of the tree, in start order."""
    return [child.name for child in leaves(built(settings, only, page_url))]


OFTEN_OFF = {
    "RELAY_POP3__BIND": "127.0.0.1:0",
    "RELAY_SMTP__LMTP": "/nowhere/lmtp",
    "RELAY_OUTBOUND__BOUNCE_DOMAIN": "returns.example",
    "RELAY_OUTBOUND__TLS_REPORTS": "tls-reports@relay.example",
}
PROCESSES = {"RELAY_SMTP__PROCESSES": "2"} | OFTEN_OFF
FILTER = {"RELAY_SMTP__FILTER": "tests.actors.test_filter:Handler"} | OFTEN_OFF


def test_every_actor_has_its_place():
    """What has a `run` in actors/ is built where all is wanted, and may import no other actor."""
    root = Path(tree_module.__file__).parent
    actors = {file.stem for file in root.glob("*.py") if "\nasync def run(" in file.read_text()}
    built_here = set(names(load(environ=FILTER))) | set(names(load(environ=PROCESSES)))
    assert {"ingest_process", *built_here} - {"ingest-1", "ingest-2"} == actors
    contracts = tomllib.loads((root.parent / "pyproject.toml").read_text())
    (independent,) = (
        contract["modules"]
        for contract in contracts["tool"]["importlinter"]["contracts"]
        if contract["type"] == "independence"
    )
    assert set(independent) == {f"actors.{name}" for name in actors}


def test_header_readme_and_tree_are_the_same_picture():
    """The same groups and actors in the same order: start order is that of need."""
    drawn = picture(str(tree_module.__doc__))
    assert drawn == picture(README.read_text())
    processes = [(1, "processes"), (2, "ingest-1")]
    assert [row for row in drawn if row not in processes] == list(walk(built(load(environ=FILTER))))
    assert [row for row in drawn if row[1] != "filter"] == [
        row for row in walk(built(load(environ=PROCESSES))) if row[1] != "ingest-2"
    ]


def test_the_database_starts_first_and_the_doors_open_last():
    """Shutdown is the reverse: who calls is let go first, and the database last of all."""
    order = names(Settings())
    assert order[:2] == ["postgres", "listener"]
    assert order[-4:] == ["ingest", "submission", "devices", "control"]


def test_a_filter_stands_before_the_ingest_that_asks_it():
    """The operator's filter runs only where one is configured."""
    order = names(load(environ=FILTER))
    assert order.index("filter") == order.index("ingest") - 1
    assert "filter" not in names(Settings())


def test_lmtp_and_pop3_are_served_only_where_they_have_an_address():
    """They are off unless they are asked for."""
    assert {"pop3", "lmtp"} <= set(names(load(environ=OFTEN_OFF)))
    assert not {"pop3", "lmtp"} & set(names(Settings()))


def test_processes_stand_before_the_ingest_that_feeds_them():
    """As many as are set, with the role; none where that is one."""
    order = names(load(environ=PROCESSES))
    assert order[order.index("ingest") - 2 : order.index("ingest")] == ["ingest-1", "ingest-2"]
    assert {"ingest-1", "ingest-2"} <= set(names(load(environ=PROCESSES), frozenset({"ingest"})))
    assert "ingest-1" not in names(load(environ=PROCESSES), frozenset({"ticker"}))
    assert "ingest-1" not in names(Settings())


def given(spec: SupervisorSpec, what: str) -> dict[str, Any]:
    """Which actors are given a thing by this name, and what it is."""
    runs = {child.name: child.run for child in leaves(spec)}
    return {
        name: run.keywords[what]
        for name, run in runs.items()
        if isinstance(run, partial) and what in run.keywords
    }


def test_every_mail_port_trusts_the_same_proxies_and_shows_the_same_certificate():
    """Also the SMTP processes, which are told when it is read again."""
    certificate = Certificate("cert.pem", "key.pem")
    proxies = {"RELAY_SMTP__TRUSTED_PROXIES": '["192.0.2.0/24"]'} | OFTEN_OFF
    tree = built(load(environ=proxies), certificate=certificate)
    ports = {"ingest", "submission", "pop3"}
    assert given(tree, "proxies") == dict.fromkeys(ports, networks(["192.0.2.0/24"]))
    assert given(tree, "certificate") == dict.fromkeys(ports, certificate)
    tree = built(load(environ=proxies | PROCESSES), certificate=certificate)
    shown = {"ingest-1", "ingest-2", "submission", "pop3"}
    assert given(tree, "certificate") == dict.fromkeys(shown, certificate)


async def test_who_waits_for_mail_is_seen(autojump_clock):
    """In the hub that HTTP's waits subscribe to: then the summariser parses few messages without a
    rest, and the writer stores them with their summaries; that one for a while longer."""
    hub = Hub()
    awaited = given(built(Settings(), hub=hub), "awaited")
    assert not any(each() for each in awaited.values())
    with hub.subscribe(channels.SUMMARIES, "3f8a"):
        assert all(each() for each in awaited.values())
    assert {name: each() for name, each in awaited.items()} == {"summariser": False, "writer": True}
    await trio.sleep(AWAITED_FOR + 1)
    assert not any(each() for each in awaited.values())


def test_each_group_fails_by_itself_and_a_device_store_for_ever():
    """Every group has a budget of its own; only the one of the device store has no end."""
    tree = built(Settings())
    groups = {group.name: group for group in tree.children}
    assert all(isinstance(group, SupervisorSpec) for group in groups.values())
    budgets = {name: group.max_restarts for name, group in groups.items()}  # type: ignore[union-attr]  # just asserted
    assert {name for name, most in budgets.items() if most == math.inf} == {"devices-store"}
    assert [group.name for group in tree.children if not group.awaited] == ["devices-store"]
    (processes,) = [g for g in built(load(environ=PROCESSES)).children if g.name == "processes"]
    assert isinstance(processes, SupervisorSpec)
    assert processes.max_restarts == 7, "each may fail once for what all suffer"
    core = groups["core"]
    assert isinstance(core, SupervisorSpec)
    assert core.strategy is Strategy.REST_FOR_ONE


def test_what_can_be_said_to_an_actor_is_listed_beside_it():
    """Nine sweep; those that report have figures of their own."""
    heard: dict[type, set[str]] = {SweepNow: set(), Report: set()}
    for spec in leaves(built(load(environ=FILTER))):
        for command in spec.hears:
            heard[command].add(spec.name)
    assert heard[SweepNow] == {
        "ticker", "reaper", "summariser", "claimer", "collector", "tls_reporter", "returns",
        "notifier", "webhooks",
    }  # fmt: skip
    assert heard[Report] == {
        "control", "devices", "device_store", "ingest", "lmtp", "pop3", "submission",
    }  # fmt: skip
    assert Report in next(
        spec.hears for spec in leaves(built(load(environ=PROCESSES))) if spec.name == "ingest-2"
    )


@pytest.mark.parametrize(("verb", "kind"), [("sweep", SweepNow), ("report", Report)])
def test_help_names_who_hears_a_command(verb: str, kind: type):
    """As `relay actor sweep --help` and `report --help` list them."""
    trees = (built(load(environ=FILTER)), built(load(environ=PROCESSES)))
    hears = {spec.name for tree in trees for spec in leaves(tree) if kind in spec.hears}
    text = actor.commands[verb].help or ""
    named = set(re.findall(r"[a-z][a-z0-9_-]+", text.partition(":")[2]))
    words = {"and", "each", "of", "so", "on"}
    assert hears - {"ingest-2"} == named - words


def test_what_has_no_work_that_can_wait_is_not_paused():
    """The database's actors, and the plane by which an operator resumes the others."""
    specs = leaves(built(load(environ=FILTER)))
    assert {spec.name for spec in specs if not spec.pausable} == {"postgres", "listener", "control"}


def test_a_subset_brings_what_it_needs():
    """`--only ingest` stores and summarises, but expires nothing and serves no HTTP."""
    assert names(Settings(), frozenset({"ingest"})) == [
        "postgres",
        "listener",
        "recorder",
        "writer",
        "summariser",
        "ingest",
    ]
    assert names(Settings(), frozenset({"ticker"})) == [*CORE, "ticker"]


CORE = ["postgres", "listener", "recorder"]
MAIL = ["writer", "summariser"]
NEEDED = {
    "postgres": CORE,
    "listener": CORE,
    "ingest": [*CORE, *MAIL, "ingest"],
    "lmtp": [*CORE, *MAIL, "lmtp"],
    "submission": [*CORE, "submission"],
    "pop3": [*CORE, "pop3"],
    "ticker": [*CORE, "ticker"],
    "claimer": [*CORE, *MAIL, "tls_reporter", "sender", "claimer"],
    "sender": [*CORE, *MAIL, "tls_reporter", "sender", "claimer"],
    "reaper": [*CORE, "reaper"],
    "collector": [*CORE, "collector"],
    "returns": [*CORE, "returns"],
    "notifier": [*CORE, "notifier"],
    "webhooks": [*CORE, "webhooks"],
    "devices": [*CORE, "device_store", "devices"],
    "control": [*CORE, *MAIL, "control"],
}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_brings_what_it_needs_and_no_more(role):
    """The database and its news always, whom it writes to, and nobody else."""
    assert names(load(environ=OFTEN_OFF), frozenset({role})) == NEEDED[role]


def test_blobs_that_come_by_http_need_the_store_that_nodes_share():
    """Where PostgreSQL keeps them, the control plane brings the store along."""
    settings = load(environ={"RELAY_DEVICES__STORE": "postgres"})
    assert "device_store" in names(settings, frozenset({"control"}))


def test_a_role_may_be_said_by_the_name_it_had():
    """Scripts of before go on."""
    assert FORMER == {"courier": "webhooks", "keeper": "device_store"}
    assert names(Settings(), frozenset({"courier"})) == NEEDED["webhooks"]


def test_an_unknown_role_is_a_configuration_error():
    """The sentence names the roles there are."""
    with pytest.raises(ConfigError, match="no role 'ingst'; the roles are postgres, listener"):
        names(Settings(), frozenset({"ingst"}))


def test_a_filter_that_cannot_be_loaded_is_a_configuration_error():
    """The sentence names module and setting."""
    with pytest.raises(ConfigError, match=r"smtp\.filter"):
        names(load(environ={"RELAY_SMTP__FILTER": "no_such_module:Filter"}))


def test_reports_of_tls_are_from_an_address():
    """The sentence names the setting."""
    settings = load(environ={"RELAY_OUTBOUND__TLS_REPORTS": "nobody"})
    with pytest.raises(ConfigError, match="RELAY_OUTBOUND__TLS_REPORTS is not an address"):
        names(settings)
    assert "tls_reporter" not in names(Settings())


async def test_no_report_of_tls_is_posted_into_this_network():
    """Whatever mail may do for a test: who has a domain says where reports of it go."""
    environ = {
        "RELAY_OUTBOUND__UPSTREAM": "mx:",
        "RELAY_OUTBOUND__TLS_REPORTS": "tls-reports@relay.example",
        "RELAY_OUTBOUND__PRIVATE_MX": "true",
    }
    reports = given(built(load(environ=environ)), "reports")["tls_reporter"]
    for url in ("https://127.0.0.1:1/", "https://localhost:1/"):
        with pytest.raises(NotPosted, match="public"):
            await reports._post(url, b"", {})


def test_a_collector_needs_to_know_where_the_pages_are():
    """Where nobody does, the sentence names the setting; other roles do not mind."""
    with pytest.raises(ConfigError, match="RELAY_HTTP__PUBLIC_URL"):
        names(Settings(), frozenset({"collector"}), page_url="")
    assert "ingest" in names(Settings(), frozenset({"ingest"}), page_url="")


def test_templates_are_tried_at_the_start(tmp_path):
    """A mistake in one is a configuration error."""
    (tmp_path / "activation.txt").write_text("{{ link ")
    settings = load(environ={"RELAY_COLLECTOR__TEMPLATES": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"activation\.txt"):
        names(settings)
