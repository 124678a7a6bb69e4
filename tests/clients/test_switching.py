"""Suites written for Mailpit and MailHog: their clients, unchanged, against `/compat`.

docs/switching.md says that all passes but what it lists; what these clients say is held against it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import smtplib
import subprocess
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.cached import Missing, environment
from tests.npm import node_modules
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "switching.md"


@pytest.fixture(autouse=True)
def no_mail(relay: RelayProcess) -> None:
    """Leave nothing of the test before, which is not to be seen by the next one."""
    with relay.http() as api:
        api.delete("/compat/mailpit/api/v1/messages").raise_for_status()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay whose mail may all be deleted, and released to one domain, where nobody listens."""
    env = {
        "RELAY_SMTP__CHAOS": "true",
        "RELAY_OUTBOUND__UPSTREAM": "smtp://127.0.0.1:9",
        "RELAY_OUTBOUND__RELEASE_TO": "*@released.example",
    }
    data = tmp_path_factory.mktemp("switching") / "relay"
    with RelayProcess(data, env=env) as process:
        yield process


def exceptions(title: str) -> dict[str, str]:
    """What does not pass, as the document has it: a call's name to what is said of it."""
    section = DOCUMENT.read_text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|$", section, re.MULTILINE)
    assert rows
    return {name: said.strip() for name, said in rows}


def url_alone(client: str) -> str:
    """What the document says of a client that is told a URL with the credential, and no more."""
    said = re.search(rf"^\| {client} \| ([^|]+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert said is not None
    return said[1]


def send(relay: RelayProcess, *recipients: str) -> None:
    """Send what the clients look for, and wait until it can be read."""
    message = EmailMessage()
    message["From"] = "Shop <shop@shop.example>"
    message["To"] = ", ".join(recipients)
    message["Subject"] = "Reset your password"
    message.set_content("Your code is 482913.\nhttps://shop.example/reset?t=1")
    message.add_alternative(
        '<p>Your code: <b>482913</b> <a href="https://shop.example/reset?t=1">Reset</a></p>'
        '<img src="cid:logo@shop.example">',
        subtype="html",
    )
    _, shown = message.iter_parts()
    shown.add_related(b"PNG", maintype="image", subtype="png", cid="<logo@shop.example>")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="invoice.pdf")
    with smtplib.SMTP(*relay.smtp) as smtp:
        smtp.send_message(message, "shop@shop.example", list(recipients))
    with relay.http() as api:
        for recipient in recipients:
            wait = {"to": recipient, "timeout": "10"}
            api.get("/api/v1/messages/wait", params=wait).raise_for_status().json()


def url(relay: RelayProcess, path: str, *, in_url: bool) -> str:
    """Where a client finds the relay; with its credential, where that is to be in there."""
    credential = f"any:{relay.run['admin_token']}@" if in_url else ""
    return f"http://{credential}{relay.run['http'].removeprefix('http://')}{path}"


def run(script: str, relay: RelayProcess, path: str, *, in_url: bool) -> dict[str, str]:
    """What a script of `catchers` says of each call that it made: passed, or why not.

    `in_url`: it is told a URL and nothing else.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    done = subprocess.run(
        [node, str(HERE / "catchers" / script)],
        env={
            **os.environ,
            "NODE_PATH": str(node_modules(HERE / "catchers")),
            "CATCHER": url(relay, path, in_url=in_url),
            "PASSWORD": "" if in_url else relay.run["admin_token"],
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def judged(found: dict[str, str], said: dict[str, str]) -> None:
    """Hold what a client found against the document: all passes but for what has a status there."""
    assert found.keys() > said.keys()
    for name, outcome in found.items():
        if name not in said:
            assert outcome == "passes", name
            continue
        wanted = re.match(r"[0-9]{3}\b", said[name])
        assert wanted is not None, name
        assert re.search(rf"(API Error:|answers) {wanted[0]}\b", outcome), f"{name}: {outcome}"


def test_mailpit_api(relay: RelayProcess) -> None:
    """Each call of the npm client, with what it answers."""
    send(relay, "ada@customer.example", "bob@customer.example")
    judged(run("mailpit-api.js", relay, "/compat/mailpit", in_url=False), exceptions("mailpit-api"))


def test_mailpit_api_takes_no_credential_in_its_url(relay: RelayProcess) -> None:
    """Not one call reaches the relay: `fetch` refuses such a URL."""
    send(relay, "ada@customer.example", "bob@customer.example")
    found = run("mailpit-api.js", relay, "/compat/mailpit", in_url=True)
    assert found.keys() > exceptions("mailpit-api").keys()
    for name, outcome in found.items():
        assert "passes" not in outcome, name
    assert "credentials" in found["listMessages()"]
    assert url_alone("mailpit-api").startswith("no")


@pytest.mark.parametrize("in_url", [False, True])
def test_cypress_mailhog(relay: RelayProcess, in_url: bool) -> None:
    """Each command of the Cypress plug-in, with the credential beside the URL and in it."""
    send(relay, "ada@customer.example", "bob@customer.example")
    found = run("cypress-mailhog.js", relay, "/compat/mailhog/", in_url=in_url)
    judged(found, exceptions("cypress-mailhog"))
    assert url_alone("cypress-mailhog") == "yes"


@pytest.mark.parametrize("in_url", [False, True])
def test_pytest_mailpit(relay: RelayProcess, tmp_path: Path, in_url: bool) -> None:
    """Its fixtures, in a suite of its own and in an environment of its own; with the credential
    beside the URL and in it."""
    try:
        python = environment(HERE / "pytest_mailpit") / "bin" / "python"
    except Missing as missing:
        pytest.skip(str(missing))
    shutil.copy(HERE / "pytest_mailpit" / "suite.py", tmp_path / "test_suite.py")
    host, port = relay.smtp
    beside = {"MAILPIT_USERNAME": "any", "MAILPIT_PASSWORD": relay.run["admin_token"]}
    if in_url:
        beside = {}
        assert url_alone("pytest-mailpit") == "yes"
    done = subprocess.run(
        [
            *(python, "-W", "error", "-m", "pytest", "--setup-show", "-q"),
            *("-p", "no:cacheprovider"),
            *("--mailpit-url", url(relay, "/compat/mailpit/", in_url=in_url)),
        ],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "MAILPIT_SMTP": f"{host}:{port}",
            **beside,
        },
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    used = set(re.findall(r"SETUP +\w (mailpit\w*)", done.stdout))
    listed = subprocess.run(
        [python, "-m", "pytest", "--fixtures", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    every = re.findall(r"^(mailpit\w*)(?: \[\w+ scope\])? -- ", listed.stdout, re.MULTILINE)
    assert used < set(every)
    assert set(every) - used == exceptions("pytest-mailpit").keys()  # it starts another catcher
