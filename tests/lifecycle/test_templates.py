"""The letters, built in and of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.errors import ConfigError
from relay.lifecycle.letters import BUILT_IN, Letters, Unwritable
from relay.lifecycle.tokens import Action
from relay.mailboxes.extract import find_code, find_links
from relay.outbound.composing.message import Address, Message

TOKEN = "BfQXx31qfY2IJFTtzAp21IdeW0dDIxUT1Ejf3tYJDukNsfaxxOfldwL-lEfVy4SEkZ_v18rf-EWsvWXH5qgvIg"


def letters(directory: Path | None = None, **changes: str) -> Letters:
    """Letters with these settings."""
    settings = {"sender": "no-reply@shop.example", "base": "https://shop.example/"} | changes
    return Letters(directory=directory, **settings)


def written(by: Letters, action: Action, **changes: str) -> Message:
    """A letter of that action."""
    values = {"email": "ada@example.org", "login": "ada", "token": TOKEN, "code": "06435"}
    return by.write(action=action, minutes=15, **(values | changes))


def test_activation():
    """Text and HTML carry the link, from the sender of the settings, to the account's address."""
    letter = written(letters(sender="Shop <hello@shop.example>"), Action.ACTIVATION)
    link = f"https://shop.example/activate?token={TOKEN}"
    assert letter.sender == Address("hello@shop.example", "Shop")
    assert [each.address for each in letter.recipients] == ["ada@example.org"]
    assert letter.subject == "Activate your account"
    assert letter.text is not None
    assert letter.html is not None
    assert find_links(letter.text, letter.html) == [link]
    assert f'href="{link}"' in letter.html
    assert find_code("", letter.text) is None
    assert letter.headers["Auto-Submitted"] == "auto-generated"


def test_recovery():
    """The code is there too, found by whoever reads mail for a program; it goes first."""
    letter = written(letters(), Action.PASSWORD_RECOVERY)
    assert letter.text is not None
    assert letter.html is not None
    assert find_code(letter.subject, letter.text) == "06435"
    assert f"https://shop.example/recover?token={TOKEN}" in letter.text
    assert "06435" in letter.html
    assert letter.priority == "high"


@pytest.mark.parametrize(
    "login", ["<script>alert(1)</script>", "a\r\n\r\nBuy at evil.example", "\x00\x1b[2J"]
)
def test_a_login_cannot_write_into_the_letter(login):
    """It is escaped in HTML, and one line everywhere."""
    letter = written(letters(), Action.ACTIVATION, login=login)
    assert letter.text is not None
    assert letter.html is not None
    assert "<script>" not in letter.html
    assert letter.text.startswith("Hello ")
    assert letter.text.count("\n") == written(letters(), Action.ACTIVATION).text.count("\n")  # type: ignore[union-attr]
    assert not set(letter.text) & set("\x00\x1b\r")


@pytest.mark.parametrize("email", ["nobody", "a b@c.example", "a@b@", "x@-"])
def test_an_account_without_an_address_is_refused(email):
    """It may be stored, since anything writes SQL; no mail can go to it."""
    with pytest.raises(Unwritable) as failure:
        written(letters(), Action.ACTIVATION, email=email)
    assert email not in str(failure.value)


def test_a_template_that_fails_on_one_account_is_that_accounts_trouble(tmp_path):
    """The sample was fine; the reason quotes nobody."""
    (tmp_path / "activation.txt").write_text("{{ link }} {{ 1 / (login | length - 5) }}")
    with pytest.raises(Unwritable, match="ZeroDivisionError"):
        written(letters(tmp_path), Action.ACTIVATION, login="12345")


def test_own_templates_replace_some(tmp_path):
    """What the directory has is used, the rest is built in; HTML of one's own is escaped too."""
    (tmp_path / "activation.subject").write_text("Hi {{ login }}\n")
    (tmp_path / "activation.html").write_text(
        '{% include "_head.html" %}<i>{{ login }}</i> {{ link }}'
    )
    (tmp_path / "_head.html").write_text("<h1>Shop</h1>")
    letter = written(letters(tmp_path), Action.ACTIVATION, login="A & B")
    assert letter.subject == "Hi A & B"
    assert letter.html is not None
    assert letter.html.startswith("<h1>Shop</h1><i>A &amp; B</i> https://")
    assert letter.text == written(letters(), Action.ACTIVATION, login="A & B").text


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("activation.txt", "{{ link", "activation.txt"),
        ("activation.txt", "{{ lnik }} {{ token }}", "lnik"),
        ("activation.txt", "Hello.", "its link or token"),
        ("recovery.html", "{{ link }}", "its code"),
        ("recovery.subject", "\n", "recovery.subject is empty"),
        ("recovery.txt", "{% include 'missing' %}", "missing"),
        ("recovery.txt", "{{ link }} {{ code }} {{ minutes / 0 }}", "division"),
        ("activaton.txt", "{{ link }}", "did you mean activation.txt"),
        ("activation.subject", b"\xff\xfe", "activation.subject"),
    ],
)
def test_a_fault_is_found_at_the_start(tmp_path, file, content, says):
    """One sentence that names the file or the variable."""
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=says):
        letters(tmp_path)


def test_a_missing_directory_and_a_wrong_sender(tmp_path):
    """Name the setting."""
    with pytest.raises(ConfigError, match="RELAY_COLLECTOR__TEMPLATES"):
        letters(tmp_path / "missing")
    with pytest.raises(ConfigError, match="RELAY_COLLECTOR__SENDER"):
        letters(sender="nobody")


def test_the_built_in_files_are_those_it_reads():
    """A copy of the directory is a good start for one's own."""
    assert letters(BUILT_IN).link(Action.ACTIVATION, "t").endswith("/activate?token=t")
