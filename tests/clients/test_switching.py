"""Suites written for Mailpit and MailHog: their clients, unchanged, against `/compat`.

docs/switching.md has a table of what passes; what these clients say is held against it.
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


def table(title: str) -> dict[str, str]:
    """A table of the document: a call's name to what is said of it."""
    section = DOCUMENT.read_text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|$", section, re.MULTILINE)
    assert rows
    return {name: said.strip() for name, said in rows}


def send(relay: RelayProcess, *recipients: str) -> None:
    """Send what the clients look for, and wait until it can be read."""
    message = EmailMessage()
    message["From"] = "Shop <shop@shop.example>"
    message["To"] = ", ".join(recipients)
    message["Subject"] = "Reset your password"
    message.set_content("Your code is 482913.\nhttps://shop.example/reset?t=1")
    message.add_alternative(
        '<p>Your code: <b>482913</b> <a href="https://shop.example/reset?t=1">Reset</a></p>',
        subtype="html",
    )
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="invoice.pdf")
    with smtplib.SMTP(*relay.smtp) as smtp:
        smtp.send_message(message, "shop@shop.example", list(recipients))
    with relay.http() as api:
        for recipient in recipients:
            wait = {"to": recipient, "timeout": "10"}
            api.get("/api/v1/messages/wait", params=wait).raise_for_status().json()


def run(script: str, relay: RelayProcess, path: str) -> dict[str, str]:
    """What a script of `catchers` says of each call that it made: passed, or why not."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    done = subprocess.run(
        [node, str(HERE / "catchers" / script)],
        env={
            **os.environ,
            "NODE_PATH": str(node_modules(HERE / "catchers")),
            "CATCHER": f"{relay.run['http']}{path}",
            "PASSWORD": relay.run["admin_token"],
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
    """Hold what a client found against the document: `passes`, or the status that it names."""
    assert found.keys() == said.keys()
    for name, outcome in found.items():
        wanted = re.match(r"[0-9]{3}", said[name])
        if wanted is None:
            assert (said[name], outcome) == ("passes", "passes"), name
        else:
            assert re.search(rf"(API Error:|answers) {wanted[0]}\b", outcome), f"{name}: {outcome}"


def test_mailpit_api(relay: RelayProcess) -> None:
    """Each call of the npm client, with what it answers."""
    send(relay, "ada@customer.example", "bob@customer.example")
    judged(run("mailpit-api.js", relay, "/compat/mailpit"), table("mailpit-api"))


def test_cypress_mailhog(relay: RelayProcess) -> None:
    """Each command of the Cypress plug-in."""
    send(relay, "ada@customer.example", "bob@customer.example")
    judged(run("cypress-mailhog.js", relay, "/compat/mailhog/"), table("cypress-mailhog"))


def test_pytest_mailpit(relay: RelayProcess, tmp_path: Path) -> None:
    """Its fixtures, in a suite of its own and in an environment of its own."""
    try:
        python = environment(HERE / "pytest_mailpit") / "bin" / "python"
    except Missing as missing:
        pytest.skip(str(missing))
    shutil.copy(HERE / "pytest_mailpit" / "suite.py", tmp_path / "test_suite.py")
    host, port = relay.smtp
    done = subprocess.run(
        [
            *(python, "-W", "error", "-m", "pytest", "--setup-show", "-q"),
            *("-p", "no:cacheprovider", "--mailpit-url", f"{relay.run['http']}/compat/mailpit/"),
        ],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "MAILPIT_USERNAME": "any",
            "MAILPIT_PASSWORD": relay.run["admin_token"],
            "MAILPIT_SMTP": f"{host}:{port}",
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
    said = table("pytest-mailpit")
    assert sorted(every) == sorted(said)
    assert used == {name for name, outcome in said.items() if outcome == "passes"}
    assert said.keys() - used == {"mailpit_container"}  # another catcher than this
