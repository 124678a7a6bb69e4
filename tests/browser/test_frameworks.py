"""What the page shows to copy for frameworks, and for Go, does in each of them what it says.

Each is given a project of its own, as small as it can be.  Skipped, with the reason, where the
framework (Rails, Laravel) or its language is not installed, as Debian packages it; Django is
installed by pip.  Spring is not tried: its properties are as Spring Boot documents them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.steps import row, signed_in
from tests.relay_process import RelayProcess

pytestmark = [pytest.mark.browser, pytest.mark.soak, pytest.mark.timeout(900)]
expect.set_options(timeout=TIMEOUT)

_GO = """package main

import "net/smtp"

func main() {{
{lines}
	if err != nil {{
		panic(err)
	}}
}}
"""
_DJANGO = """
from django.core.mail import send_mail
send_mail("Hello", "Hello", "me@example.com", ["{to}"])
"""
# `config.action_mailer` is set on ActionMailer::Base, as Rails itself does.
_RAILS = """
require "action_mailer"
config = Struct.new(:action_mailer).new(ActionMailer::Base)
{lines}
class Hello < ActionMailer::Base
  def hello(to) = mail(from: "me@example.com", to: to, subject: "Hello", body: "Hello")
end
Hello.hello("{to}").deliver_now
"""
# What a new project has in config/mail.php, and the least that its mailer needs besides.
_LARAVEL = """<?php
require 'Illuminate/autoload.php';
$app = new Illuminate\\Foundation\\Application(__DIR__);
(new Illuminate\\Foundation\\Bootstrap\\LoadEnvironmentVariables)->bootstrap($app);
$app->instance('config', new Illuminate\\Config\\Repository([
    'app' => [],
    'view' => ['paths' => [], 'compiled' => __DIR__],
    'mail' => [
        'default' => env('MAIL_MAILER', 'smtp'),
        'mailers' => ['smtp' => [
            'transport' => 'smtp',
            'host' => env('MAIL_HOST', 'smtp.mailgun.org'),
            'port' => env('MAIL_PORT', 587),
            'encryption' => env('MAIL_ENCRYPTION', 'tls'),
            'username' => env('MAIL_USERNAME'),
            'password' => env('MAIL_PASSWORD'),
        ]],
    ],
]));
foreach (['Events\\Event', 'Filesystem\\Filesystem', 'View\\View', 'Mail\\Mail'] as $one) {{
    $app->register("Illuminate\\\\{{$one}}ServiceProvider");
}}
$app->boot();
$app->make('mailer')->raw('Hello', fn ($mail) =>
    $mail->from('me@example.com')->to('{to}')->subject('Hello'));
"""


def run(command: Sequence[str], folder: Path, **env: str) -> None:
    """Run something there that ends well; what it said, if it does not."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def go(lines: str, to: str, folder: Path) -> None:
    """The lines are the program, but for who looks at the error."""
    (folder / "main.go").write_text(_GO.format(lines=lines, to=to))
    run(["go", "run", "main.go"], folder, GOCACHE=str(folder / "cache"))


def django(lines: str, to: str, folder: Path) -> None:
    """The lines are the settings."""
    run([sys.executable, "-m", "venv", "venv"], folder)
    python = str(folder / "venv" / "bin" / "python")
    run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "django"], folder
    )
    (folder / "settings.py").write_text(lines)
    run([python, "-c", _DJANGO.format(to=to)], folder, DJANGO_SETTINGS_MODULE="settings")


def rails(lines: str, to: str, folder: Path) -> None:
    """The lines are the configuration of its mailer."""
    (folder / "hello.rb").write_text(_RAILS.format(lines=lines, to=to))
    run(["ruby", "hello.rb"], folder)


def laravel(lines: str, to: str, folder: Path) -> None:
    """The lines are its .env."""
    (folder / ".env").write_text(lines)
    (folder / "hello.php").write_text(_LARAVEL.format(to=to))
    run(["php", "hello.php"], folder)


PROJECTS: dict[str, tuple[Callable[[str, str, Path], None], list[str]]] = {
    "Django": (django, [sys.executable]),
    "Rails": (rails, ["ruby", "-e", 'require "action_mailer"']),
    "Laravel": (laravel, ["php", "-r", "require 'Illuminate/autoload.php';"]),
    "Go": (go, ["go", "version"]),
}
"""How each is tried, and what has to run for that."""


@pytest.mark.parametrize("client", PROJECTS)
def test_the_lines_for_a_framework_do_as_they_stand(
    relay: RelayProcess, browse: Browse, tmp_path: Path, client: str
) -> None:
    """What an empty inbox shows to copy brings the first mail."""
    trying, needs = PROJECTS[client]
    if (
        shutil.which(needs[0]) is None
        or subprocess.run(needs, input=b"", capture_output=True, check=False).returncode != 0
    ):
        pytest.skip(f"{' '.join(needs)} does not run")
    with browse() as visit, relay.http() as api:
        name = {"local_part": f"{client.lower()}-{uuid.uuid4().hex[:12]}"}
        address = api.post("/api/v1/mailboxes", json=name).raise_for_status().json()["address"]
        page = signed_in(visit, relay, f"mail/{address}")
        hello = page.locator(".hello")
        hello.get_by_role("group", name="Client").get_by_text(client, exact=True).click()
        trying(hello.locator("pre").inner_text(), address, tmp_path)
        expect(row(page, "messages", "Hello")).to_be_visible()
        assert visit.errors == []
