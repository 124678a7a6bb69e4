"""What follows from what comes back: two hundred samples, forged and hostile ones among them."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from relay.returns import law
from relay.returns.law import Kind, finding
from relay.returns.report import COMPLAINT, DSN, Recipient, Report, read
from tests.returns.samples import COMPLAINT_FORMS, PATH, RECIPIENT, SAMPLES, Sample, report, status

CORPUS = Path(__file__).parent / "corpus"
REAL: dict[str, dict[str, Any]] = json.loads((CORPUS / "index.json").read_text())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_each_form_is_read_or_left_alone(sample: Sample):
    """Whoever sent it: what follows for the message is what its sample says."""
    found = finding(Report.from_json(read(sample.raw).as_json()), RECIPIENT)
    follows = found and (str(found.kind), found.enhanced, found.suppress, found.is_full)
    assert follows == sample.follows


@pytest.mark.parametrize("name", REAL)
def test_each_real_bounce_is_read_or_left_alone(name: str):
    """Of those that flufl.bounce collected: for good, for now, or not at all; nobody else's."""
    said = REAL[name]
    found = read((CORPUS / name).read_bytes())
    for address in said["failed"] + said["delayed"]:
        follows = finding(found, address)
        wanted = Kind.BOUNCED if address in said["failed"] else Kind.DELAYED
        if said.get("unread"):
            assert follows is None
        else:
            assert follows is not None
            assert follows.kind is wanted
            assert follows.suppress == (address in said["suppressed"])
    if found.kind != DSN:
        assert finding(found, "somebody@else.example") is None


def test_most_real_bounces_are_read():
    """Those that are left alone are named one by one, and are few."""
    unread = [name for name, said in REAL.items() if said.get("unread")]
    assert len(REAL) == 117
    assert len(unread) <= 3
    assert len(REAL) + len(SAMPLES) >= 200


FORMS = {
    "AOL, which names people by screen name": (
        b"From: Mail Delivery Subsystem <MAILER-DAEMON@aol.com>\r\nSubject: Mail problem\r\n\r\n"
        b"The mail to the following recipients could not be delivered:\r\n\r\nAda1815\r\n",
        "ada1815@aol.com",
    ),
    "MDaemon": (
        b"From: MDaemon@mail.shop.example\r\nSubject: Warning\r\n\r\n"
        b"bob@shop.example - no such user here.\r\nThere is no user by that name.\r\n",
        "bob@shop.example",
    ),
    "LSMTP": (
        b"From: Postmaster <postmaster@list.example>\r\nSubject: Report\r\n\r\n"
        b"--> Error description:\r\nError-for:  eve@list.example\r\nError-End: 1\r\n",
        "eve@list.example",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_the_library_knows_are_read(name: str):
    """If a mail server wrote them: in a person's mail the same words mean nothing.  Why is not
    known, so nobody is suppressed."""
    raw, address = FORMS[name]
    assert finding(read(raw), address) == law.Finding(Kind.BOUNCED)
    person = re.sub(rb"From: [^\r]*", b"From: Ada <ada@people.example>", raw)
    assert finding(read(person), address) is None


def test_a_complaint_names_the_return_path():
    """By which the message is found where the complaint came to another address."""
    sample = next(one for one in SAMPLES if one.name == "complaint: abuse")
    assert read(sample.raw).paths == (PATH,)


@pytest.mark.parametrize("code", [f"5.7.{detail}" for detail in range(30)])
def test_nobody_is_suppressed_for_a_policy(code: str):
    """Whatever else the reply says."""
    for one in (
        Recipient(RECIPIENT, "", "failed", code, "550 5.1.1 no such user"),
        Recipient(RECIPIENT, "", "failed", "5.1.1", f"550 {code} no such user"),
        Recipient(RECIPIENT, "", "failed", "5.0.0", f"550-5.1.1 no\n 550 {code} no such user"),
    ):
        found = finding(Report(DSN, (one,)), RECIPIENT)
        assert found is not None
        assert found.kind is Kind.BOUNCED
        assert not found.suppress


def test_whatever_failed_bounced_and_nothing_else_did():
    """Every action with every class of status."""
    for action in ("failed", "delayed", "delivered", "relayed", "expanded"):
        for code in ("4.4.7", "5.0.0", "5.1.1", "5.7.1"):
            found = finding(Report(DSN, (Recipient(RECIPIENT, "", action, code),)), RECIPIENT)
            kind = found and found.kind
            assert kind == {"failed": Kind.BOUNCED, "delayed": Kind.DELAYED}.get(action)


def test_a_complaint_is_one_only_by_its_type():
    """A report that mail is no spam is none."""
    assert finding(Report(COMPLAINT, (), "not-spam"), RECIPIENT) is None
    assert finding(Report(COMPLAINT, (), ""), RECIPIENT) is None


def test_the_picture_of_the_law_names_its_figures():
    """What the header says of full mailboxes is what is counted."""
    assert law.__doc__ is not None
    assert f"{law.FULL_MOST}" == "3"
    assert "third time in `FULL_WITHIN`" in law.__doc__


@pytest.mark.parametrize("name", COMPLAINT_FORMS)
def test_complaints_come_in_many_forms(name: str):
    """Each is one, and says what mail it is about."""
    found = read(COMPLAINT_FORMS[name])
    assert (found.kind, found.feedback) == (COMPLAINT, "abuse")
    assert PATH in found.paths


def nested(depth: int) -> bytes:
    """A mail within a mail, so many times."""
    parts = [
        f'Content-Type: multipart/report; boundary="b{n}"\r\n\r\n--b{n}\r\n' for n in range(depth)
    ]
    return "".join(parts).encode() + b"Content-Type: message/delivery-status\r\n\r\nAction: failed"


HOSTILE = {
    "deep": nested(5000),
    "25 MB of one line": b"Content-Type: multipart/report; boundary=a\r\n\r\n" + b"x" * 25_000_000,
    "many parts": b"Content-Type: multipart/report; boundary=a\r\n\r\n" + b"--a\r\n\r\n" * 200_000,
    "many recipients": report(
        "Reporting-MTA: dns; x\n\n"
        + f"Final-Recipient: rfc822; {RECIPIENT}\nAction: failed\nStatus: 5.1.1\n\n" * 8000
    ),
    "many fields": b"".join(b"X-%d: y\r\n" % n for n in range(200_000)) + b"\r\nx",
    "many addresses": b"From: MAILER-DAEMON@x.example\r\n\r\nundeliverable\r\n"
    + b"<a@b.example> " * 100_000,
    "ats": b"From: MAILER-DAEMON@x.example\r\n\r\nundeliverable\r\n" + b"@" * 400_000,
    "dots": b"From: postmaster\r\n\r\nundeliverable\r\n" + b"a." * 200_000,
    "brackets": b"From: postmaster\r\nContent-Type: text/html\r\n\r\nundeliverable\r\n"
    + b"<" * 400_000,
    "lines of dashes": b"From: MAILER-DAEMON@x.example\r\n\r\n" + (b"-" * 8000 + b"\r\n") * 40,
    "one line of dashes": b"From: MAILER-DAEMON@x.example\r\n\r\n" + b"-" * 400_000,
    "blank lines": b"Content-Type: message/delivery-status\r\n\r\n" + b"\r\n \t" * 150_000,
    "bomb of base64": report("A" * 400_000, encoding="base64"),
    "boundary without an end": b'Content-Type: multipart/report; boundary="' + b"b" * 400_000,
    "numbers": report(status("failed", "5." + "1" * 300_000)),
    "every beginning that the library knows": b"From: MAILER-DAEMON@x.example\r\n\r\n"
    + b"".join(
        word + b"\r\n"
        for word in (
            *(b"transcript of session follows", b"the following addresses had", b"Your message"),
            *(b"A message that you sent could not be delivered", b"failed addresses follow:"),
            *(b"did not reach the following recipient", b"This is the deliver program at"),
        )
    )
    + (b"x" * 4000 + b"\r\n") * 100,
    "mail in mail, of a server": b"From: MAILER-DAEMON@x.example\r\n" + nested(5000),
    "addresses without an end": b"From: MAILER-DAEMON@x.example\r\n\r\nYour message\r\n"
    + (b"a@" * 100 + b"\r\n") * 2000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_mail_takes_a_moment_and_says_nothing_more_than_it_may(name: str):
    """Bounded in time and in what is kept, whatever it is."""
    began = time.process_time()
    found = read(HOSTILE[name])
    assert time.process_time() - began < 2.0
    assert len(found.recipients) <= 100
    assert len(found.as_json()) < 1_000_000
    finding(found, RECIPIENT)


def test_a_report_that_is_cut_or_garbled_raises_nothing_and_suppresses_nobody_else():
    """Cut anywhere, or with bytes of chance in it."""
    chance = random.Random(18)
    for sample in SAMPLES:
        for _ in range(15):
            raw = bytearray(sample.raw[: chance.randrange(len(sample.raw) + 1)])
            for _ in range(chance.randrange(8)):
                if raw:
                    raw[chance.randrange(len(raw))] = chance.randrange(256)
            found = finding(read(bytes(raw)), "somebody@else.example")
            assert found is None or found.kind is Kind.COMPLAINED or not found.suppress
