"""The tree as data: who runs, in which order, and what a subset needs."""

from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from actors.tree import ROLES, Resources, build_tree
from relay.datadir import DataDir, Keyring
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.devices.noise import KeyPair
from relay.errors import ConfigError
from relay.log import LogRing
from relay.settings import Settings, load
from supervisor import Supervisor

DSN = "host=/nowhere dbname=relay"


def names(
    settings: Settings,
    only: frozenset[str] | None = None,
    page_url: str = "http://127.0.0.1:8025",
) -> list[str]:
    """The children of the tree, in start order."""
    resources = Resources(
        supervisor=Supervisor(),
        server=None,
        dsn=DSN,
        listen_dsn=DSN,
        pool=Pool(DSN),
        hub=Hub(),
        smtp_sockets=(),
        http_sockets=(),
        push_sockets=(),
        receive_sockets=(),
        device_key=KeyPair.generate() if only is None or "devices" in only else None,
        data_dir=Path("none"),
        admin_token_hash=b"",
        keyring=Keyring(DataDir(Path("none")), "5a" * 32, Fernet.generate_key().decode()),
        logs=LogRing(),
        page_url=page_url,
    )
    return [child.name for child in build_tree(settings, resources, only=only).children]


def test_the_database_starts_first_and_the_doors_open_last():
    """Start order is the order of need; shutdown is its reverse."""
    assert names(Settings()) == [
        "postgres",
        "listener",
        "writer",
        "summariser",
        "ticker",
        "reaper",
        "sender",
        "claimer",
        "courier",
        "keeper",
        "devices",
        "collector",
        "ingest",
        "control",
    ]


def test_a_filter_stands_before_the_ingest_that_asks_it():
    """The operator's filter runs only where one is configured."""
    settings = load(environ={"RELAY_SMTP__FILTER": "tests.actors.test_filter:Handler"})
    order = names(settings)
    assert order.index("filter") == order.index("ingest") - 1


def test_a_subset_brings_what_it_needs():
    """`--only ingest` stores and summarises, but expires nothing and serves no HTTP."""
    assert names(Settings(), frozenset({"ingest"})) == [
        "postgres",
        "listener",
        "writer",
        "summariser",
        "ingest",
    ]
    assert names(Settings(), frozenset({"ticker"})) == ["postgres", "listener", "ticker"]


@pytest.mark.parametrize("role", ROLES)
def test_every_role_is_known(role):
    """Each name is accepted from the start, also before its system is built."""
    assert "postgres" in names(Settings(), frozenset({role}))


def test_an_unknown_role_is_a_configuration_error():
    """The sentence names the roles there are."""
    with pytest.raises(ConfigError, match="no role 'ingst'; the roles are postgres, listener"):
        names(Settings(), frozenset({"ingst"}))


def test_a_filter_that_cannot_be_loaded_is_a_configuration_error():
    """The sentence names module and setting."""
    with pytest.raises(ConfigError, match=r"smtp\.filter"):
        names(load(environ={"RELAY_SMTP__FILTER": "no_such_module:Filter"}))


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
