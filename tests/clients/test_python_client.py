"""The Python client: its own tests, and its types."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import clients
from tests.cached import Missing, environment
from tests.clients import own_suite
from tests.npm import node_modules
from tests.relay_process import RelayProcess

HERE = Path(__file__).parent
PYRIGHT = HERE / "pyright"
PROJECT = own_suite.CLIENTS / "python"

BEFORE = """\
from django.conf import settings as of_project
from django.core.mail import send_mail
from flask import Flask
from flask_mail import Mail, Message

if not of_project.configured:  # by an example
    of_project.configure()
mailer = Mail()


def create_app(settings):
    app = Flask("shop")
    app.config.from_mapping({"MAIL_SERVER": "mail.invalid", **settings})
    mailer.init_app(app)
    return app


"""
AFTER = """

def test_django_sends_to_the_relay(inbox):
    send_mail("Welcome", "Your code is 482913.", "shop@shop.example", [inbox.address])
    assert inbox.wait(subject="Welcome").code == "482913"


def test_flask_sends_to_the_relay(app, inbox):
    message = Message("Hi", [inbox.address], "Your code is 314159.", sender="shop@shop.example")
    with app.app_context():
        mailer.send(message)
    assert inbox.wait(subject="Hi").code == "314159"
"""


@pytest.mark.timeout(own_suite.TIMEOUT)
def test_it_passes_its_own_tests() -> None:
    """As `make test-clients` runs them."""
    own_suite.passes("python")


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter that has the frameworks, and the plug-in that writes a report in HTML."""
    try:
        return environment(HERE / "frameworks") / "bin" / "python"
    except Missing as missing:
        pytest.skip(str(missing))


def suite_of(python: Path, folder: Path, relay: RelayProcess, *more: str) -> tuple[int, str]:
    """Run the tests of a folder, with warnings as errors; the exit code, and what was said."""
    done = subprocess.run(
        [
            *(python, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-o", "asyncio_default_fixture_loop_scope=function"),  # or pytest-asyncio warns
            *(*own_suite.PLUGIN, *more),
        ],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PROJECT / "src"),
            "RELAY_URL": relay.run["http"],
            "RELAY_TOKEN": relay.run["admin_token"],
        },
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.clients
def test_django_and_flask_send_as_its_readme_says(
    relay: RelayProcess, python: Path, tmp_path: Path
) -> None:
    """The README's fixtures as they stand there, and the examples, with both frameworks."""
    suite = tmp_path / "suite"
    shutil.copytree(PROJECT / "examples", suite, ignore=shutil.ignore_patterns("__pycache__"))
    _, _, marked = (PROJECT / "README.md").read_text().partition("<!-- frameworks -->\n```python\n")
    shown, ended, _ = marked.partition("```\n")
    assert ended
    (suite / "test_readme.py").write_text(BEFORE + shown + AFTER)
    status, said = suite_of(python, suite, relay)
    assert status == 0, said
    assert "5 passed" in said


ASYNC = """\
import anyio, pytest, smtplib

@pytest.fixture
async def waited(async_inbox, smtp_server):
    with smtplib.SMTP(smtp_server.host, smtp_server.port) as smtp:
        smtp.sendmail("a@shop.example", async_inbox.address, "Subject: Welcome\\n\\n482913")
    return await async_inbox.wait("Welcome")

@pytest.mark.MARK
async def test_it(waited, async_relay, async_inbox):
    assert b"482913" in await waited.raw
    async with async_relay.inbox() as other:
        await other.wait_none(0)
    await async_inbox.wait_none(0, after=waited)
"""


@pytest.mark.clients
@pytest.mark.parametrize(
    ("mark", "options"),
    [("asyncio", ["-o", "asyncio_mode=auto"]), ("trio", []), ("anyio", ["-o", "trio_mode=false"])],
)
def test_asynchronous_tests_have_its_fixtures_whoever_runs_them(
    relay: RelayProcess, python: Path, tmp_path: Path, mark: str, options: list[str]
) -> None:
    """pytest-asyncio, pytest-trio and AnyIO's own plug-in, with warnings as errors."""
    (tmp_path / "test_it.py").write_text(ASYNC.replace("MARK", mark))
    status, said = suite_of(python, tmp_path, relay, *options)
    assert status == 0, said
    assert f"{2 if mark == 'anyio' else 1} passed" in said


FAILS = """\
def test_another_code(relay, inbox):
    words = "Your code is <482913>."
    relay.send(from_="shop@shop.example", to=inbox.address, subject="Welcome", text=words)
    assert inbox.wait(subject="Welcome").code == "another"
"""


@pytest.mark.clients
def test_the_html_report_of_a_failed_test_has_its_mail(
    relay: RelayProcess, python: Path, tmp_path: Path
) -> None:
    """The text of what came, within the row of the test: Chromium opens no link to it."""
    (tmp_path / "test_fails.py").write_text(FAILS)
    status, said = suite_of(python, tmp_path, relay, "--html=report.html", "--self-contained-html")
    assert status == 1, said
    shown = own_suite.shown_in(tmp_path / "report.html")
    assert any("Your code is &lt;482913&gt;." in text for text in shown), shown


@pytest.mark.soak  # a thousand tests, eight at a time
@pytest.mark.timeout(900)
def test_a_thousand_tests_on_eight_workers_see_their_own_mail_alone(tmp_path: Path) -> None:
    """Each finds its own code and nothing else, at one relay, which the plug-in starts for all; and
    none fails for being one of many."""
    command = f"{sys.executable} -m relay up"
    figures, failed, relays = clients.suite(tmp_path, 8, "--relay-command", command)
    print(figures)  # how fast they were depends on what else the machine does: `tests.bench`
    assert failed == 0
    assert len(relays) == 1


@pytest.mark.clients
@pytest.mark.parametrize("version", [own_suite.pythons()[0], own_suite.pythons()[-1]])
def test_pyright_finds_nothing(version: str) -> None:
    """As strict as it gets, for the oldest Python and the newest; so does mypy in `make check`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    pyright = node_modules(PYRIGHT) / "pyright" / "index.js"
    done = subprocess.run(
        [
            *(
                node,
                pyright,
                "--project",
                own_suite.CLIENTS / "python",
                "--pythonpath",
                sys.executable,
            ),
            *("--pythonversion", version),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "0 errors" in done.stdout
