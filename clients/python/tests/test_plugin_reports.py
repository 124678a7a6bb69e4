"""The plug-in's report of a failed test, and that nothing in it drives who reads it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from plugin_runs import SENDS, run_pytest, ways

from relay_client import Relay
from relay_client._longrepr import tamed_properties


def test_a_failed_test_shows_its_mail(inner: pytest.Pytester) -> None:
    """With subject, code and text, in JUnit's report too; the client's own frames are left out."""
    inner.makepyfile(
        SENDS
        + """
def test_sign_up(inbox, smtp_server):
    put(smtp_server, inbox.address, "code 271828 https://shop.example/welcome")
    inbox.wait()
    inbox.wait("Reset", timeout=0.1)
"""
    )
    parallel = ways(inner)[-1]
    result = run_pytest(inner, "--junitxml=junit.xml", *parallel)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*WaitTimeout: waited 0.1 s for mail with 'Reset' in the subject; 1 other came:",
            "*from a@shop.example: 'Welcome'",
            "*Mail to *@relay.localhost*",
            "*from a@shop.example: Welcome",
            "code: 271828",
            "link: https://shop.example/welcome",
        ]
    )
    result.stdout.no_fnmatch_line("*_exchange.py*")
    text = result.stdout.str()
    assert text.count("Mail to ") == 1
    report = ElementTree.parse(inner.path / "junit.xml").getroot()
    (failure,) = [str(one.text) for one in report.iter("failure")]
    assert re.search(r"Mail to \S+@relay\.localhost(.|\n)*code: 271828", failure)


def test_a_failed_test_shows_the_mail_of_inboxes_that_it_made(inner: pytest.Pytester) -> None:
    """Of one that has ended with its block, of one that is there still, and of a fixture's, each
    once and in JUnit's report too; of what was closed by hand, or ended well, nothing."""
    inner.makepyfile(
        SENDS
        + """
@pytest.fixture
def another(relay):
    with relay.inbox(local_part=f"fixture-{id(relay)}") as inbox:
        yield inbox
    assert 0, "as it ends"

def test_it(relay, another, smtp_server):
    for part in "closed", "left", "well":
        made = relay.inbox(local_part=f"{part}-{id(relay)}")
        put(smtp_server, made.address, f"in {part}")
        made.wait()
        if part == "closed":
            made.close()
        elif part == "well":
            with made: pass
    put(smtp_server, another.address, "in fixture")
    another.wait()
    with relay.inbox(local_part=f"outer-{id(relay)}") as outer:
        with relay.inbox(local_part=f"block-{id(relay)}") as inbox:
            put(smtp_server, inbox.address, "in block")
            with pytest.raises(ZeroDivisionError), relay.inbox(local_part=f"caught-{id(relay)}"):
                1 / 0
            inbox.wait("Reset", timeout=0.2)

def test_many(relay, smtp_server):
    made = [relay.inbox() for _ in range(12)]
    assert 0, made[0].address

def test_block_of_other(relay):
    with relay.inbox() as inbox:
        pass
    assert 0
"""
    )
    result = run_pytest(inner, "--junitxml=junit.xml")
    result.assert_outcomes(failed=3, errors=1)
    said = result.stdout.str()
    first, _, others = said.partition("_ test_many _")
    titles = re.findall(r"-+ Mail to (\w+)-\d+@relay\.localhost -+\n(?:.*Welcome\n\n)?(.*)", first)
    assert titles == [
        ("fixture", "in fixture"),
        ("left", "in left"),
        ("outer", "nothing came"),
        ("block", "in block"),
        ("caught", "nothing came"),
    ]
    assert others.count(" Mail to ") == 11
    assert re.search(r"-+ Mail to 2 more inboxes -+\nis not shown\n", others)
    report = ElementTree.parse(inner.path / "junit.xml").getroot()
    failure = next(str(one.text) for one in report.iter("failure"))
    assert re.search(r"Mail to block-(.|\n)*in block", failure)


def test_the_mail_of_an_inbox_is_not_waited_for_where_no_relay_is(
    inner: pytest.Pytester,
) -> None:
    """Where that is what the test has failed with; where it hangs, for a time in all."""
    inner.makeconftest(
        """
import relay_client._mail_report
import relay_client._mailboxes

relay_client._mail_report.READS_WITHIN = 0.3
relay_client._mailboxes.CLOSES_WITHIN = 0.1
"""
    )
    inner.makepyfile(
        """
import socket
import time
import pytest
from relay_client import Relay, Unreachable

class Hanging(Relay):
    def hang(self):
        self._http.address = self.hung

@pytest.fixture
def hanging(relay):
    with socket.create_server(("127.0.0.1", 0)) as listener, Hanging(relay.url, relay.token) as one:
        one.hung = "http://127.0.0.1:%d" % listener.getsockname()[1]
        yield one

def test_unreachable(hanging):
    with hanging.inbox():
        hanging.hang()
        raise Unreachable("so it is")

def test_hangs(hanging):
    with hanging.inbox(), hanging.inbox(), hanging.inbox():
        hanging.hang()
        assert 0
"""
    )
    result = run_pytest(inner)
    result.assert_outcomes(failed=2)
    unreachable, _, hangs = result.stdout.str().partition("_ test_hangs _")
    assert "Mail to" not in unreachable
    said = re.findall(r"Mail to .*\nwhat came could not be read within 0.3 s\n", hangs)
    assert len(said) == 3


def test_a_fixture_that_fails_shows_the_mail_too(inner: pytest.Pytester) -> None:
    """Signing up is a fixture in many suites."""
    inner.makepyfile(
        SENDS
        + """
@pytest.fixture
def signed_up(inbox, smtp_server):
    put(smtp_server, inbox.address, "code 271828")
    inbox.wait()
    inbox.wait("Reset", timeout=0.1)

def test_it(signed_up): pass
"""
    )
    result = run_pytest(inner)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Mail to *@relay.localhost*", "code: 271828"])


def test_mail_without_a_subject_is_shown_as_such(inner: pytest.Pytester) -> None:
    """And without a From."""
    inner.makepyfile(
        SENDS
        + """
def test_it(inbox, smtp_server):
    with smtplib.SMTP(smtp_server.host, smtp_server.port) as smtp:
        smtp.sendmail("", [inbox.address], "To: x@y.example\\n\\nHello")
    inbox.wait().link()
"""
    )
    result = run_pytest(inner)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*NoSuchLink: no link in a message without a subject", "*:*Z from <>: (no subject)"]
    )
    result.stdout.no_fnmatch_line("*_records.py*")


def test_attachments_are_shown(inner: pytest.Pytester) -> None:
    """By name, type and size: ten of them, whose names drive nobody."""
    inner.makepyfile(
        r"""
def test_it(inbox, relay):
    files = [("terms.txt", b"Be kind.", "application/octet-stream")]
    files += [(f"##vso[x]{n}.pdf", b"%PDF") for n in range(10)]
    relay.send(from_="a@b.example", to=inbox.address, text="Hi", attachments=files)
    assert len(inbox.wait().attachments) == 0
"""
    )
    result = run_pytest(inner)
    result.assert_outcomes(failed=1)
    said = result.stdout.str().partition("Mail to ")[2]
    first, *others = re.findall(r"^attachment: (.*)$", said, re.MULTILINE)
    assert first == "terms.txt (application/octet-stream, 8 B)"
    assert len(others) == 9
    for other in others:
        assert re.fullmatch(r"\\u0023#vso\[x\]\d\.pdf \(application/pdf, 4 B\)", other)


def test_a_report_in_html_has_the_mail_within_its_row(inner: pytest.Pytester) -> None:
    """As a text: a link leads nowhere in a report of one file, and markup of mail is none there."""
    inner.makeconftest(
        """
def pytest_configure(config):
    if not config.pluginmanager.has_plugin("html"):  # as pytest-html is called
        config.pluginmanager.register(object(), "html")

def pytest_runtest_logreport(report):
    for extra in getattr(report, "extras", ()):
        print(extra)
"""
    )
    inner.makepyfile(
        SENDS
        + """
def test_it(inbox, smtp_server):
    put(smtp_server, inbox.address, "<script>1</script>")
    inbox.wait()
    assert 0
"""
    )
    said = run_pytest(inner, "-s").stdout.str()
    assert re.search(r"'format_type': 'html', 'content': '<pre>Mail to .*&lt;script&gt;1&lt;", said)
    assert "'format_type': 'text'" not in said


def test_html_alone_is_shown_as_such(inner: pytest.Pytester) -> None:
    """Or the report shows a text that `.text` does not have."""
    inner.makepyfile(
        """
def test_it(inbox, relay):
    for text in None, "Hello":
        relay.send(from_="a@b.example", to=inbox.address, subject="A", text=text, html="<b>Hi</b>")
        message = inbox.wait(after=None if text is None else message)
        assert message.text is None if text is None else "Hello" in message.text
    assert inbox.wait().text == "Hi"
"""
    )
    result = run_pytest(inner)
    result.assert_outcomes(failed=1)
    heads = r"from a@b\.example: A\n(.*)\n\nHi\n(?:.*\n)+.*from a@b\.example: A\n\nHello\n"
    found = re.search(heads, result.stdout.str())
    assert found is not None
    assert found[1] == "HTML only: .text is None"


def test_what_the_report_cannot_read_ends_no_run(inner: pytest.Pytester) -> None:
    """Whatever it fails with: an error that leaves a hook ends all tests, and one that leaves a
    block hides the test's own."""
    inner.makepyfile(
        """
import relay_client._mail_report

def fails(*_, **__):
    raise UnicodeError("::x")

def test_it(inbox, relay):
    relay_client._mail_report.messages = fails
    with relay.inbox() as other:
        assert other is inbox
def test_other(): pass
"""
    )
    result = run_pytest(inner)
    result.assert_outcomes(failed=1, passed=1)
    assert result.stdout.str().count("what came cannot be read: UnicodeError('::x')\n") == 2
    result.stdout.fnmatch_lines(["E * assert <Inbox *> is <Inbox *>"])


def test_mail_in_a_report_drives_no_terminal(inner: pytest.Pytester) -> None:
    """A title, a cleared screen, a link that says it leads elsewhere: each is spelt."""
    inner.makepyfile(
        SENDS
        + r"""
def test_it(inbox, smtp_server):
    put(smtp_server, inbox.address, "a\x1b]0;title\x07 b\x1b[2J\tc\x7f")
    inbox.wait()
    assert 0
"""
    )
    result = run_pytest(inner)
    result.assert_outcomes(failed=1)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", result.stdout.str())
    result.stdout.fnmatch_lines([r"a\u001b]0;title\u0007 b\u001b[[]2J*c\u007f"])


def test_mail_in_a_report_commands_no_ci(inner: pytest.Pytester) -> None:
    """What GitHub Actions, Azure Pipelines and TeamCity obey in a run's output is spelt, too."""
    lines = (
        "::error::a",
        "  ::stop-commands::b",
        "see ##vso[task.setvariable variable=c]",
        "##[add-path]d",
        "##teamcity[e]",
        "std::move, ## and #1",
    )
    inner.makepyfile(
        SENDS
        + f"""
def test_it(inbox, smtp_server):
    put(smtp_server, inbox.address, {chr(10).join(lines)!r})
    inbox.wait()
    assert 0
"""
    )
    result = run_pytest(inner)
    result.assert_outcomes(failed=1)
    section = result.stdout.str().partition("Mail to ")[2].partition("short test summary")[0]
    assert not re.search(r"^\s*::|##(\[|vso|teamcity)", section, re.MULTILINE)
    assert r"\u003a:error::a" in section
    assert r"see \u0023#vso[task.setvariable variable=c]" in section
    assert "std::move, ## and #1" in section


_COMPARES = r"""
import logging
import smtplib
from email.header import Header
import pytest

EVIL = "##[error]x ##vso[task.setvariable variable=p]y \x1b]0;t\x07\x1b[2J\x1b[8m\u202eabc\r"

@pytest.fixture(scope="module")
def said(relay):
    subject = Header("Welcome " + EVIL.strip(), "utf-8").encode(linesep="\r\n")
    head = f"Subject: {subject}\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    mail = f"{head}a\r\n::error::pwn {EVIL.strip()}\r\n".encode()
    host, _, port = relay.info().smtp.rpartition(":")
    with relay.inbox() as inbox:
        with smtplib.SMTP(host, int(port)) as smtp:
            smtp.sendmail("a@shop.example", [inbox.address], mail)
        message = inbox.wait(subject="Welcome")
    assert "\x1b" in message.subject and "\x1b" in message.text
    return message

def test_subject(said): assert said.subject == "Welcome"
def test_text(said): assert said.text == "a\n"
def test_in(said): assert "code" in said.text
def test_not_in(said): assert "a\n:" not in said.text
def test_list(said): assert [said.subject, said.text] == []
def test_raised(said): raise ValueError(said.text)
def test_said(said): pytest.fail(said.text, pytrace=False)
def test_noted(said):
    try:
        raise ValueError(said.text)
    except ValueError as error:
        raise AssertionError(said.subject) from error
def test_locals(said):
    text, lines = said.text, said.text.splitlines()
    assert 0
def test_printed(said):
    print(said.text)
    logging.getLogger("shop").warning(said.text)
    assert 0
def test_skipped(said): pytest.skip(said.subject)
def test_expected(said): pytest.xfail(said.subject)
@pytest.mark.xfail(reason=EVIL)  # no test of ours: how pytest tells such a reason is looked at
def test_marked(said): assert 0
@pytest.mark.xfail(reason=EVIL)  # and where the test passes all the same
def test_passed(said): pass
def test_other():
    assert EVIL == "", EVIL
"""


@pytest.mark.parametrize(
    "options",
    [("-vv", "--showlocals", "--color=yes"), ("--tb=line",), ("--tb=native", "-n", "1")],
    ids=" ".join,
)
def test_mail_that_is_compared_drives_nothing(
    inner: pytest.Pytester, options: tuple[str, ...]
) -> None:
    """What pytest shows of both sides, and of what was printed and logged, is as harmless as the
    plug-in's own section, in all styles; a test without the fixtures has what pytest says of it."""
    inner.makepyfile(_COMPARES)
    result = run_pytest(inner, "-rA", "--junitxml=junit.xml", "-k", "not test_other", *options)
    result.assert_outcomes(failed=10, skipped=1, xfailed=2, xpassed=1)
    said = result.stdout.str()
    for colour in re.findall(r"\x1b\[[0-9;]*m", said) if "--color=yes" in options else ():
        if "8" not in colour:
            said = said.replace(colour, "")
    for each in (said, (inner.path / "junit.xml").read_text()):
        assert "Welcome" in each
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", each)
        assert not re.search(r"(?m)^\s*::|##(\[|vso\[)", each)
    assert r"\u0023#[error]x" in said
    other = run_pytest(inner, "-k", "test_other")  # which has not read it
    assert "##[error]x" in other.stdout.str()


_WARNS = r"""
import threading
import warnings

EVIL = "\n::error::x ##vso[task.x]y \x1b]0;t\x07\x1b[2J\x9b\u202eabc"

def test_other_before(): warnings.warn("before ##[x]")
def test_records(relay, record_property):
    record_property("said", EVIL)
    record_property("parts", {"raw": [EVIL.encode()]})
    record_property(EVIL, 7)
def test_warns(relay): warnings.warn("Welcome" + EVIL)
def test_category(relay): warnings.warn("Late" + EVIL, DeprecationWarning)
def test_thread(relay):
    def fail(): raise ValueError("Thread" + EVIL)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
def test_other_after(): warnings.warn("after" + EVIL)
"""


def test_mail_in_a_warning_or_a_property_drives_nothing(inner: pytest.Pytester) -> None:
    """Of a test, of a thread, and of a test after them; with the warning's own category."""
    inner.makepyfile(_WARNS)
    for way in ways(inner):
        result = run_pytest(inner, "--junitxml=junit.xml", "-o", "junit_family=xunit1", *way)
        result.assert_outcomes(passed=6, warnings=5)
        said = result.stdout.str()
        assert "before ##[x]" in said or way  # which had read none
        for each in (said.replace("before ##[x]", ""), (inner.path / "junit.xml").read_text()):
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", each)
            assert not re.search(r"(?m)^\s*::|##(\[|vso\[)", each)
        shown = r"\n\s*\\u003a:error::x \\u0023#vso\[task.x\]y \\u001b\]0;t"
        for start in (
            "UserWarning: Welcome",
            "DeprecationWarning: Late",
            "Error: Thread",
            ": after",
        ):
            assert re.search(start + shown, said)
        assert "PytestUnhandledThreadExceptionWarning: " in said
        report = ElementTree.parse(inner.path / "junit.xml").getroot()
        found = {str(one.get("name"))[-4:]: one.get("value") for one in report.iter("property")}
        assert found.keys() == {"said", "arts", "eabc"}
        assert found["eabc"] == "7"
        assert r"\u0023#vso[task.x]" in str(found["arts"])


def test_what_cannot_be_recorded_ends_no_run() -> None:
    """Such as a header of a mail that Python's own parser fails over."""

    class Broken:
        def __str__(self) -> str:
            raise ValueError

    recorded: list[tuple[str, object]] = [("header", Broken()), ("number", 7)]
    assert tamed_properties(recorded) == recorded


def test_mail_in_a_report_fills_no_log(inner: pytest.Pytester) -> None:
    """Invisible characters that grow as they are spelt, and links of many characters, are cut."""
    inner.makepyfile(
        r"""
import smtplib

UNSEEN = "\U000e0041"
SUBJECT = "\r\n ".join([UNSEEN * 200] * 20)
LINKS = "\r\n".join(f"https://x.example/{n}/" + "q" * 900 for n in range(20))
TEXT = "\r\n".join([UNSEEN * 200] * 40)

def test_it(inbox, smtp_server):
    with smtplib.SMTP(smtp_server.host, smtp_server.port) as smtp:
        smtp.login(smtp_server.user, smtp_server.password)
        mail = (
            f"Subject: {SUBJECT}\r\nMIME-Version: 1.0\r\n"
            "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n"
            f"\r\n{LINKS}\r\n{TEXT}"
        )
        smtp.sendmail("a@shop.example", [inbox.address], mail.encode())
    inbox.wait()
    inbox.wait("Reset", timeout=0.1)
"""
    )
    result = run_pytest(inner, "--show-capture=no", "--tb=short")
    result.assert_outcomes(failed=1)
    assert re.search(r"; 1 other came:\n.*: '(\\u\{e0041\}){22}\u2026'\n", result.stdout.str())
    report = re.split("-+ Mail to .* -+\n", result.stdout.str())[1]
    assert report.count("\nlink: https://x.example/") > 2
    assert len(report) < 9_000


@pytest.mark.parametrize(
    ("url", "gist"),
    [
        ("localhost:8025", "RELAY_URL must begin with http://*: 'localhost:8025'"),
        ("https://{}", "no TLS connection to https:"),
        ("http://relay.example", "a proxy of the environment has no URL that can be read: *"),
    ],
)
def test_no_report_has_the_token(
    inner: pytest.Pytester, relay: Relay, monkeypatch: pytest.MonkeyPatch, url: str, gist: str
) -> None:
    """Neither where the URL is none, nor where the relay does not answer or cannot be asked, with
    all that pytest shows of frames."""
    token = "rk_" + "s" * 40
    monkeypatch.setenv("http_proxy", f"http://ci:{token}/tail@proxy.example:3128")
    monkeypatch.setenv("RELAY_URL", url.format(relay.url.partition("://")[2]))
    monkeypatch.setenv("RELAY_TOKEN", token)
    inner.makepyfile("def test_it(inbox): pass\n")
    result = run_pytest(inner, "--showlocals", "--tb=long")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["no relay (see relay-client at the end): *", f"{gist}*"])
    assert token not in result.stdout.str()
