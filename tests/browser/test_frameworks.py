"""What the page shows to copy for frameworks, and for Go, does in each of them what it says.

Each is given a project of its own, as small as it can be, from its registry.  Skipped, with the
reason, where what it is written in is not installed.
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
_LARAVEL = (
    'Illuminate\\Support\\Facades\\Mail::raw("Hello", fn ($mail) =>'
    ' $mail->from("me@example.com")->to("{to}")->subject("Hello"));'
)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<parent><groupId>org.springframework.boot</groupId>
<artifactId>spring-boot-starter-parent</artifactId><version>3.4.1</version></parent>
<groupId>example</groupId><artifactId>hello</artifactId><version>1</version>
<properties><java.version>17</java.version></properties>
<dependencies><dependency><groupId>org.springframework.boot</groupId>
<artifactId>spring-boot-starter-mail</artifactId></dependency></dependencies>
<build><plugins><plugin><groupId>org.springframework.boot</groupId>
<artifactId>spring-boot-maven-plugin</artifactId></plugin></plugins></build>
</project>
"""
_SPRING = """package hello;

import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.mail.SimpleMailMessage;
import org.springframework.mail.javamail.JavaMailSender;

@SpringBootApplication
public class Hello {{
    public static void main(String[] arguments) {{
        SpringApplication.run(Hello.class, arguments);
    }}

    @Bean
    CommandLineRunner send(JavaMailSender sender) {{
        return arguments -> {{
            SimpleMailMessage message = new SimpleMailMessage();
            message.setFrom("me@example.com");
            message.setTo("{to}");
            message.setSubject("Hello");
            message.setText("Hello");
            sender.send(message);
        }};
    }}
}}
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
    """The lines are in a new project's .env, in place of those that are there."""
    home = {"COMPOSER_HOME": str(folder / "composer"), "COMPOSER_ALLOW_SUPERUSER": "1"}
    project = folder / "application"
    made = [
        "composer",
        "create-project",
        "--no-interaction",
        "--quiet",
        "--no-dev",
        "laravel/laravel",
    ]
    run([*made, project.name], folder, **home)
    env = project / ".env"
    names = tuple(line.partition("=")[0] + "=" for line in lines.splitlines() if "=" in line)
    others = [line for line in env.read_text().splitlines() if not line.startswith(names)]
    env.write_text("\n".join([*others, lines, ""]))
    script = project / "hello.php"
    script.write_text(
        "<?php require 'vendor/autoload.php'; $app = require 'bootstrap/app.php';"
        "$app->make(Illuminate\\Contracts\\Console\\Kernel::class)->bootstrap();"
        + _LARAVEL.format(to=to)
    )
    run(["php", script.name], project)


def spring(lines: str, to: str, folder: Path) -> None:
    """The lines are its properties."""
    place = folder / "src" / "main"
    (place / "java" / "hello").mkdir(parents=True)
    (place / "resources").mkdir()
    (folder / "pom.xml").write_text(_POM)
    (place / "java" / "hello" / "Hello.java").write_text(_SPRING.format(to=to))
    (place / "resources" / "application.properties").write_text(lines)
    run(["mvn", "--quiet", "--batch-mode", f"-Dmaven.repo.local={folder}/repository",
         "spring-boot:run"], folder)  # fmt: skip


PROJECTS: dict[str, tuple[Callable[[str, str, Path], None], list[str]]] = {
    "Django": (django, [sys.executable]),
    "Rails": (rails, ["ruby", "-e", 'require "action_mailer"']),
    "Laravel": (laravel, ["composer", "--version"]),
    "Spring": (spring, ["mvn", "--version"]),
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
