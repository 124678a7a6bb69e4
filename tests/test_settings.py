"""The settings: where a value comes from, and what is said about a wrong one."""

import ast
import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from relay.errors import ConfigError
from relay.settings import (
    Settings,
    Smtp,
    as_chosen,
    as_environment,
    captures,
    chosen,
    explain,
    ignored,
    known_names,
    load,
    parse_dns_server,
    parse_duration,
    parse_endpoint,
    processes_on,
    show,
    sources,
)

ROOT = Path(__file__).parent.parent
DOCUMENTED = ROOT / "config" / "relay.toml"


def test_the_documented_file_says_exactly_the_defaults():
    """config/relay.toml loads, and differs from the defaults in nothing."""
    assert load(config=DOCUMENTED, environ={}) == Settings()


def test_every_setting_is_read():
    """Somewhere in the code stands `….section.name` for each: one that nobody wired would lie."""
    read = set()
    for path in (*(ROOT / "relay").rglob("*.py"), *(ROOT / "actors").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(ast.Attribute(attr=section) | ast.Name(id=section), name):
                    read |= {name, f"{section}.{name}"}
    assert [name for name in known_names() if name not in read] == []


def test_every_setting_is_documented():
    """Each known name stands in config/relay.toml, if only as a comment."""
    text = DOCUMENTED.read_text()
    table = tomllib.loads(text)
    for name in known_names():
        section, _, key = name.partition(".")
        present = (
            section in table
            if not key
            else key in table.get(section, {}) or f"\n# {key} = " in text
        )
        assert present, name


def test_the_environment_wins_over_the_file(tmp_path):
    """A variable replaces what the file says; what neither names keeps its default."""
    file = tmp_path / "relay.toml"
    file.write_text('[smtp]\nbind = "127.0.0.1:1025"\nmax_recipients = 7\n')
    settings = load(config=file, environ={"RELAY_SMTP__BIND": "127.0.0.1:0"})
    assert settings.smtp.bind == "127.0.0.1:0"
    assert settings.smtp.max_recipients == 7
    assert settings.smtp.max_connections == 1000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5.0),
        ("0.5", 0.5),
        ("250ms", 0.25),
        ("90s", 90.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("7d", 604800.0),
    ],
)
def test_durations_carry_a_unit_or_are_seconds(text, seconds):
    """Each suffix multiplies by what it means."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("", ()),
        ("https://a.example/", ("https://a.example",)),
        ('["https://a.example", "http://relay:8025"]', ("https://a.example", "http://relay:8025")),
    ],
)
def test_the_public_address_is_one_or_several(text, urls):
    """The first stands in links."""
    settings = load(environ={"RELAY_HTTP__PUBLIC_URL": text})
    assert settings.http.public_url == urls
    assert settings.http.link_base == (urls[0] if urls else "")


TABLES = "outbound.sources"
LISTS = [
    name for name, value in show(Settings()).items() if isinstance(value, list) and name != TABLES
]
ITEMS = {
    "http.public_url": ("https://a.example", "http://relay:8025"),
    "http.trusted_proxies": ("192.0.2.0/24", "::1"),
    "smtp.domains": ("a.example", "b.example"),
    "smtp.trusted_proxies": ("192.0.2.0/24", "::1"),
    "dns.servers": ("[2001:db8::53]:5353", "192.0.2.53"),
    "ingest.sns_topics": ("arn:aws:sns:eu-west-1:1:a", "arn:aws:sns:eu-west-1:1:b"),
    "ingest.s3_buckets": ("mail", "more@eu-west-1"),
    "ingest.notification_secrets": ("a secret of sixteen", "another of sixteen"),
    "outbound.release_to": ("*@a.example", "ops@b.example"),
}
S3_KEYS = {"RELAY_INGEST__S3_ACCESS_KEY": "a", "RELAY_INGEST__S3_SECRET_KEY": "b"}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_written_with_commas_or_as_json(name: str, tmp_path: Path):
    """Every list, in the environment as in the file; one item needs neither."""
    section, _, key = name.partition(".")
    items, variable = ITEMS[name], as_environment(name)

    def read(text: str) -> object:
        by_variable = load(environ={variable: text, **S3_KEYS})
        file = tmp_path / "relay.toml"
        file.write_text(f"[{section}]\n{key} = {json.dumps(text)}\n")
        assert load(config=file, environ=S3_KEYS) == by_variable
        return getattr(getattr(by_variable, section), key)

    assert read(", ".join(items)) == read(f" {json.dumps(items)} ") == items
    assert read(items[0] + ",") == items[:1]
    if name != "smtp.domains":
        assert read("") == read("[]") == ()


def test_a_list_of_tables_is_json_or_toml(tmp_path: Path):
    """With the days of TOML as texts; another process has them as they were said."""
    said = [{"name": "new", "warm_up": {"start": "2026-11-01", "first": 5, "until": 9}}]
    file = tmp_path / "relay.toml"
    file.write_text(
        '[[outbound.sources]]\nname = "new"\n'
        "warm_up = { start = 2026-11-01, first = 5, until = 9 }\n"
    )
    settings = load(config=file, environ={})
    assert settings == load(environ={"RELAY_OUTBOUND__SOURCES": json.dumps(said)})
    assert list(settings.outbound.sources) == said
    assert as_chosen(json.loads(json.dumps(chosen(settings))), settings) == settings
    assert load(environ={"RELAY_OUTBOUND__SOURCES": ""}).outbound.sources == ()
    for text in ("new", "{}", "[1]", "[" * 100_000):
        with pytest.raises(ConfigError, match=r"RELAY_OUTBOUND__SOURCES is .* list of tables"):
            load(environ={"RELAY_OUTBOUND__SOURCES": text})


@pytest.mark.parametrize("text", ["", "5x", "-1", "1 2", "s", "1e3", True, None])
def test_what_is_no_duration_is_refused(text):
    """Nothing is guessed about a malformed duration."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (
            {"RELAY_SMTP__BINDD": "x"},
            "RELAY_SMTP__BINDD is not a setting of Relay; did you mean RELAY_SMTP__BIND?",
        ),
        (
            {"RELAY_SMTP__BIND": "x"},
            "RELAY_SMTP__BIND is 'x', which is not usable: it must be host:port",
        ),
        *(
            (
                {"RELAY_OUTBOUND__RELEASE_TO": text},
                'a list is written as one, two or as JSON, ["one',
            )
            for text in ('["*@a.example"', "[*@a.example]", '["a", 5]', "[" * 9000)
        ),
        ({"RELAY_SMTP__BIND": "host:70000"}, "a port is a number from 0 to 65535"),
        ({"RELAY_SMTP__CHAOS": "maybe"}, "it must be true or false"),
        ({"RELAY_SMTP__DOMAINS": ""}, "at least 1 item"),
        ({"RELAY_SMTP__DOMAINS": '["a b"]'}, "'a b' is not a domain name"),
        ({"RELAY_SMTP__FILTER": "nomodule"}, "it must be module:Class"),
        ({"RELAY_SMTP__PROCESSES": "0"}, "it must be auto, or a number from 1 to 64"),
        ({"RELAY_SMTP__PROCESSES": "65"}, "it must be auto, or a number from 1 to 64"),
        ({"RELAY_SMTP__PROCESSES": "many"}, "it must be auto, or a number from 1 to 64"),
        (
            {"RELAY_SMTP__PROCESSES": "2", "RELAY_SMTP__FILTER": "a:B"},
            "RELAY_SMTP__FILTER is asked by sessions of one process",
        ),
        *(
            ({"RELAY_SMTP__CHAOS": "true", f"RELAY_SMTP__{name}": value}, reason)
            for name, value, reason in (
                ("PROCESSES", "2", "sessions of one process"),
                ("BIND", "0.0.0.0:2525", "must be a loopback address"),
            )
        ),
        ({"RELAY_EXPIRY__RETENTION": "soon"}, "a duration is a number of seconds"),
        ({"RELAY_EXPIRY__SWEEP_EVERY": "0"}, "greater than 0"),
        ({"RELAY_OUTBOUND__LEASE_TIMEOUT": "1s"}, "greater than or equal to 2"),
        ({"RELAY_OUTBOUND__UPSTREAM": "smtp://mx.example.org"}, "loopback only"),
        ({"RELAY_OUTBOUND__UPSTREAM": "http://x"}, "it must be loop:"),
        ({"RELAY_HTTP__PUBLIC_URL": "relay.example"}, "http or https"),
        ({"RELAY_SECRET_KEY": "abc"}, "64 hexadecimal digits"),
        ({"RELAY_ENCRYPTION_KEYS": "abc"}, "Fernet key"),
        ({"RELAY_ADMIN_TOKEN": "a" * 31}, "32 to 512 letters"),
        ({"RELAY_ADMIN_TOKEN": "a token with spaces, which no header holds"}, "32 to 512 letters"),
        ({"RELAY_HTTP__METRICS_TOKEN": "64-MORE"}, "32 to 512 letters"),
        ({"RELAY_ADMIN_TOKEN": "a" * 64}, "8 or more different characters"),
        ({"RELAY_ADMIN_TOKEN": "abcdefg" * 9}, "8 or more different characters"),
        (
            {"RELAY_ADMIN_TOKEN": "abcdefgh" * 4, "RELAY_HTTP__METRICS_TOKEN": "abcdefgh" * 4},
            "two different tokens",
        ),
        ({"RELAY_LOG__LEVEL": "loud"}, "'debug', 'info'"),
        ({"RELAY_COLLECTOR__MONTHLY_BUDGET": "100"}, "set both or neither"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(environ, sentence):
    """The error names the variable as it was written and says what to change."""
    with pytest.raises(ConfigError) as caught:
        load(environ=environ)
    message = str(caught.value)
    assert sentence in message
    assert "\n" not in message
    assert next(iter(environ)) in message


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("3", 3), ("auto", processes_on(len(os.sched_getaffinity(0))))]
)
def test_processes_are_so_many_or_as_many_as_the_cores_feed(text, count):
    """`auto` asks for the cores that this process may use."""
    assert load(environ={"RELAY_SMTP__PROCESSES": text}).smtp_processes == count


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4), (500, 64)])
def test_two_cores_feed_one_process(cores, count):
    """Below four cores one process accepts more than two would."""
    assert processes_on(cores) == count


def test_the_variables_of_a_kubernetes_service_are_ignored():
    """A Service named relay, or relay-smtp, beside the relay's pod is no misspelt setting."""
    made = {
        "RELAY_PORT": "tcp://10.0.0.1:25",
        "RELAY_PORT_25_TCP": "tcp://10.0.0.1:25",
        "RELAY_PORT_25_TCP_ADDR": "10.0.0.1",
        "RELAY_SERVICE_HOST": "10.0.0.1",
        "RELAY_SERVICE_PORT_SMTP": "25",
        "RELAY_SMTP_PORT": "tcp://10.0.0.2:25",
        "RELAY_SMTP_PORT_25_TCP_PROTO": "tcp",
        "RELAY_SMTP_SERVICE_HOST": "10.0.0.2",
    }
    environ = made | {"RELAY_LOG__LEVEL": "debug"}
    assert load(environ=environ).log.level == "debug"
    assert ignored(environ) == sorted(made)
    for name in ("RELAY_PORTS", "RELAY_SMTP_PORT", "RELAY_SMTP__PORT", "RELAY_SERVICES"):
        with pytest.raises(ConfigError, match=f"{name} is not a setting"):
            load(environ={name: "2525"})


def test_the_variables_of_the_clients_are_no_settings():
    """A shell that tests with a relay by the clients starts one, too."""
    source = (Path(__file__).parents[1] / "clients/python/src/relay_client/_connect.py").read_text()
    read = set(re.findall(r'"(RELAY_[A-Z]+)"', source))
    assert read == {"RELAY_URL", "RELAY_TOKEN"}
    assert load(environ=dict.fromkeys(read, "http://127.0.0.1:8025")) == load(environ={})


def test_an_unknown_name_in_the_file_is_an_error_that_names_the_file(tmp_path):
    """A misspelt key in TOML is found like one in the environment."""
    file = tmp_path / "relay.toml"
    file.write_text("[expiry]\nretentoin = 5\n")
    with pytest.raises(ConfigError, match=r"expiry\.retentoin .*did you mean expiry\.retention\?"):
        load(config=file, environ={})


@pytest.mark.parametrize("name", ["RELAY_KEY", "RELAY_SECRET_KEYS", "RELAY_DEVICES__KEYY"])
def test_no_secret_is_suggested(name: str):
    """What an unknown name holds may be a password; nobody is told to make it the relay's key."""
    with pytest.raises(ConfigError, match=f"{name} is not a setting of Relay") as caught:
        load(environ={name: "rk_hunter2"})
    for secret in ("RELAY_SECRET_KEY?", "RELAY_DEVICES__KEY?", "RELAY_ENCRYPTION_KEYS?"):
        assert secret not in str(caught.value)


def test_a_secret_is_neither_echoed_nor_shown():
    """An error about a secret, and the listing of all settings, keep it to themselves."""
    with pytest.raises(ConfigError) as caught:
        load(environ={"RELAY_SECRET_KEY": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load(environ={"RELAY_DEVICES__KEY": "5a" * 31})
    assert "5a5a" not in str(caught.value)
    assert show(load(environ={"RELAY_DEVICES__KEY": "5a" * 32}))["devices.key"] == "***"
    shown = show(load(environ={"RELAY_DATABASE__URL": "postgresql://u:hunter2@db/relay"}))
    assert shown["database.url"] == "postgresql://u:***@db/relay"
    secrets = {
        "RELAY_INGEST__S3_SECRET_KEY": "hunter2",
        "RELAY_INGEST__S3_SESSION_TOKEN": "hunter2",
        "RELAY_ADMIN_TOKEN": "hunter2-of-all" * 5,
        "RELAY_HTTP__METRICS_TOKEN": "hunter2" * 5,
    }
    assert "hunter2" not in str(show(load(environ=secrets)))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunt@er2@db/relay",
        "postgresql://db/relay?user=u&password=hunter2&sslmode=require",
        "postgresql://db/relay?sslpassword=hunter2",
        "host=db user=u password=hunter2",
        "host=db PASSWORD = 'hunt er2' user=u",
    ],
)
def test_a_password_is_masked_wherever_it_stands_in_an_address(url):
    """As libpq takes one: before the host, among the parameters, or in a list of words."""
    shown = show(load(environ={"RELAY_DATABASE__URL": url}))["database.url"]
    assert "er2" not in shown
    assert "***" in shown
    assert "db" in shown


def test_each_setting_is_explained_and_says_where_it_comes_from(tmp_path):
    """The environment wins over the file; a comment above several holds for each of them."""
    file = tmp_path / "relay.toml"
    file.write_text('[smtp]\nbind = "127.0.0.1:26"\nmax_recipients = 7\n')
    environ = {"RELAY_SMTP__BIND": "127.0.0.1:27", "RELAY_DEVICES__KEY": "5a" * 32}
    origins = sources(config=file, environ=environ)
    assert origins == {
        "smtp.bind": "environment",
        "smtp.max_recipients": "file",
        "devices.key": "environment",
    }
    explained = {each.name: each for each in explain(load(config=file, environ=environ), origins)}
    assert list(explained) == known_names()
    bind = explained["smtp.bind"]
    assert bind[1:5] == ("RELAY_SMTP__BIND", "127.0.0.1:27", "127.0.0.1:2525", "environment")
    assert bind.meaning.startswith("2525, because 25")
    assert explained["smtp.max_recipients"].source == "file"
    assert explained["log.level"].source == "default"
    assert explained["devices.key"].value == "***"
    assert all(each.meaning not in {"", "likewise"} for each in explained.values())
    assert explained["pop3.max_connections_per_peer"].meaning == (
        explained["pop3.max_connections"].meaning
    )


@pytest.mark.parametrize(
    "url",
    [
        *("https://relay.example", "https://relay.example:8443/below/", "HTTPS://[2001:db8::1]"),
        '["https://relay.example", "http://relay.lan"]',
        f"https://relay.example/{'x' * 378}",
    ],
)
def test_links_to_unsubscribe_by_lead_to_an_https_address(url: str):
    """The first of the public ones."""
    settings = load(environ={"RELAY_OUTBOUND__UNSUBSCRIBE": "true", "RELAY_HTTP__PUBLIC_URL": url})
    assert settings.outbound.unsubscribe


@pytest.mark.parametrize(
    "url",
    [
        *("", "http://relay.example", "https://ä.example", "https://u:p@relay.example"),
        *("https://relay.example/?a=b", "https://relay.example/#a", "https://relay.example/<"),
        *("https://relay.example/a b", "https://relay.example/>"),
        '["http://relay.lan", "https://relay.example"]',
        f"https://relay.example/{'x' * 379}",
    ],
)
def test_without_one_a_relay_with_such_links_does_not_start(url: str):
    """One sentence says what to set; without such links any address will do."""
    with pytest.raises(ConfigError, match=r"UNSUBSCRIBE .* RELAY_HTTP__PUBLIC_URL .*https"):
        load(environ={"RELAY_OUTBOUND__UNSUBSCRIBE": "true", "RELAY_HTTP__PUBLIC_URL": url})
    load(environ={"RELAY_HTTP__PUBLIC_URL": url})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("S3_BUCKETS", '["Not A Bucket"]', "not a bucket"),
        ("S3_BUCKETS", '["mail@evil.example"]', "not a bucket"),
        ("S3_BUCKETS", '["mail"]', "S3_ACCESS_KEY"),
        ("S3_ENDPOINT", "ftp://x", "http or https"),
        ("S3_ENDPOINT", "http://minio.example:9000", "loopback"),
        ("S3_ENDPOINT", "https://u:p@minio.example", "http or https"),
    ],
)
def test_where_mail_lies_in_s3_is_checked(name, value, reason):
    """Buckets, their keys and another endpoint are refused at the start where they cannot work."""
    with pytest.raises(ConfigError, match=reason):
        load(environ={f"RELAY_INGEST__{name}": value})


def test_secrets_of_reports_are_long_enough_and_kept():
    """With `whsec_` base64, of 16 bytes at least; neither the error nor the listing says them."""
    for value in ("hunter2hunter2h", "whsec_hunter2!hunter2hunter2", "whsec_aHVudGVyMg=="):
        with pytest.raises(ConfigError, match="NOTIFICATION_SECRETS") as caught:
            load(environ={"RELAY_INGEST__NOTIFICATION_SECRETS": f'["{"a" * 16}", "{value}"]'})
        assert value not in str(caught.value)
    secrets = f"hunter2hunter2hu,whsec_{'aHVudGVy' * 4}"
    settings = load(environ={"RELAY_INGEST__NOTIFICATION_SECRETS": secrets})
    assert len(settings.ingest.notification_secrets) == 2
    assert show(settings)["ingest.notification_secrets"] == "***"


@pytest.mark.parametrize(
    "name", ["Subject", "X-", "X-a:", "X-a\r\nBcc", "X-ä", "X-" + "a" * 60, "X"]
)
def test_the_field_of_reports_is_one_that_means_nothing_else(name: str):
    """A name that begins with X-; Postmark's and none pass."""
    with pytest.raises(ConfigError, match="begins with X-"):
        load(environ={"RELAY_OUTBOUND__REPORT_FIELD": name})
    for good in ("X-PM-Metadata-relay", ""):
        found = load(environ={"RELAY_OUTBOUND__REPORT_FIELD": good})
        assert found.outbound.report_field == good


def test_every_variable_of_the_settings_is_known():
    """as_environment and load agree on every name."""
    environ = {as_environment("smtp.max_recipients"): "5", as_environment("http.bind"): "[::1]:0"}
    settings = load(environ=environ)
    assert (settings.smtp.max_recipients, settings.http.bind) == (5, "[::1]:0")


def test_addresses_split_into_host_and_port():
    """IPv6 hosts stand in brackets, and only there."""
    assert parse_endpoint("[::1]:25") == ("::1", 25)
    assert parse_endpoint("relay.example:0") == ("relay.example", 0)
    for wrong in ("::1:25", "host", ":25", "host:", "host:70000", "host:²"):
        with pytest.raises(
            ValueError, match=r"must be host:port|brackets|a port is a number from 0 to 65535"
        ):
            parse_endpoint(wrong)


def test_servers_of_the_dns_are_addresses():
    """With a port or without; names would have to be asked for."""
    servers = '["192.0.2.53", "192.0.2.53:5353", "2001:db8::53", "[2001:db8::53]:5353"]'
    read = load(environ={"RELAY_DNS__SERVERS": servers}).dns.servers
    assert list(map(parse_dns_server, read)) == [
        ("192.0.2.53", 53),
        ("192.0.2.53", 5353),
        ("2001:db8::53", 53),
        ("2001:db8::53", 5353),
    ]
    for wrong in ("dns.example", "192.0.2.53:x", "[2001:db8::53", "192.0.2.300", ""):
        with pytest.raises(ConfigError, match="each is an IP address"):
            load(environ={"RELAY_DNS__SERVERS": json.dumps([wrong])})


@pytest.mark.parametrize("text", ["", "0", "1000000", "500M", "1.5G", "5%"])
def test_the_floor_of_free_space(text, tmp_path):
    """It is kept as it was written, in a file as a number too."""
    environ = {"RELAY_STORAGE__MIN_FREE": text}
    assert load(environ=environ).storage.min_free == text
    file = tmp_path / "relay.toml"
    file.write_text("[storage]\nmin_free = 1000000\n")
    assert load(config=file, environ={}).storage.min_free == "1000000"


@pytest.mark.parametrize("text", ["much", "-5", "150%", "5 k%"])
def test_what_is_no_floor(text):
    """The sentence names the variable and says what it may be."""
    with pytest.raises(ConfigError, match=r"RELAY_STORAGE__MIN_FREE.*percentage of the disk"):
        load(environ={"RELAY_STORAGE__MIN_FREE": text})


@pytest.mark.parametrize(
    ("capture", "hosts", "on"),
    [
        ("auto", ["127.0.0.1", "::1"], True),
        ("auto", ["127.0.0.1", "0.0.0.0"], False),
        ("auto", [], True),
        ("on", ["0.0.0.0"], True),
        ("off", ["127.0.0.1"], False),
    ],
)
def test_capture_is_on_for_this_machine_alone(capture, hosts, on):
    """Unless it is said otherwise; without sockets by the address that is to be listened on."""
    assert captures(Smtp(capture=capture), hosts) is on
    assert not captures(Smtp(bind="0.0.0.0:25"))
    assert not captures(Smtp(trusted_proxies=("127.0.0.1",)))
