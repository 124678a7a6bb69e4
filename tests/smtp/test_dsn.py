"""The parameters of RFC 3461, 6533 and 8689: what is read, what is refused, what is written."""

from __future__ import annotations

import itertools

import pytest

from relay.smtp.dsn import (
    DEFAULT,
    MAX_ENVID,
    MAX_ORCPT,
    BadParameter,
    Dsn,
    MailParameters,
    Notify,
    RcptParameters,
    from_xtext,
    original_recipient,
    take_mail,
    take_rcpt,
    to_xtext,
)


def mail(text: str) -> MailParameters:
    parameters, others = take_mail(text.split(" "), dsn=True, require_tls=True)
    assert not list(filter(None, others))
    return parameters


def rcpt(text: str, *, utf8: bool = False) -> RcptParameters:
    parameters, others = take_rcpt(text.split(" "), utf8=utf8)
    assert not list(filter(None, others))
    return parameters


def test_mail():
    """In any case, in any order."""
    assert mail("") == MailParameters(None, None, False)
    assert mail("ret=hdrs envid=QQ314159+2B requiretls") == MailParameters(
        "HDRS", "QQ314159+2B", True
    )
    assert mail("ENVID=a RET=Full") == MailParameters("FULL", "a")
    assert mail(f"ENVID={'x' * MAX_ENVID}").envid == "x" * MAX_ENVID


@pytest.mark.parametrize(
    "text",
    [
        "RET", "RET=", "RET=ALL", "RET=FULL,HDRS", "RET=FULL RET=FULL", "RET=HDRS ret=FULL",
        "ENVID", "ENVID=", "ENVID=a ENVID=a", "ENVID=a=b", "ENVID=a+b", "ENVID=a+2b", "ENVID=a+",
        "ENVID=a+0D+0A", "ENVID=+00", "ENVID=+7F", "ENVID=+C3+A9", "ENVID=é",
        f"ENVID={'x' * (MAX_ENVID + 1)}", f"ENVID={'+41' * 34}",
        "REQUIRETLS=", "REQUIRETLS=yes", "REQUIRETLS REQUIRETLS",
    ],
)  # fmt: skip
def test_mail_that_is_refused(text: str):
    """With 501."""
    with pytest.raises(BadParameter, match=r"^501 5\.5\.4 "):
        mail(text)


def test_what_is_not_offered_is_left():
    """And so is what is none of these."""
    given = ["", "RET=FULL", "ENVID=a", "REQUIRETLS", "SIZE=5", "RETURN=x"]
    assert take_mail(given, dsn=False, require_tls=False) == (MailParameters(), given)
    assert take_mail(given, dsn=True, require_tls=False) == (
        MailParameters("FULL", "a"), ["", "REQUIRETLS", "SIZE=5", "RETURN=x"],
    )  # fmt: skip
    assert take_rcpt(["", "NOTIFYX=NEVER"], utf8=False) == (RcptParameters(), ["", "NOTIFYX=NEVER"])


def test_every_notify_there_is():
    """All lists of the words, in any order; NEVER stands alone; nothing twice."""
    words = ["SUCCESS", "FAILURE", "DELAY", "NEVER"]
    taken = 0
    for count in range(1, 5):
        for chosen in itertools.product(words, repeat=count):
            text = f"NOTIFY={','.join(chosen)}"
            if len(set(chosen)) < count or ("NEVER" in chosen and count > 1):
                with pytest.raises(BadParameter, match=r"^501 "):
                    rcpt(text)
                continue
            taken += 1
            wanted = Notify.NEVER
            for word in chosen:
                wanted |= Notify[word]
            assert rcpt(text.lower()).notify == wanted
    assert taken == 3 + 6 + 6 + 1
    assert rcpt("").notify == DEFAULT


@pytest.mark.parametrize(
    "text",
    [
        "NOTIFY", "NOTIFY=", "NOTIFY=ALWAYS", "NOTIFY=UNSAID", "NOTIFY=SUCCESS,", "NOTIFY=,DELAY",
        "NOTIFY=NEVER NOTIFY=NEVER", "NOTIFY=SUCCESS;FAILURE",
        "ORCPT", "ORCPT=", "ORCPT=a@b.example", "ORCPT=;a@b.example", "ORCPT=rfc822;",
        "ORCPT=rf c822;a@b", "ORCPT=rfc(822;a@b", "ORCPT=rfc822;a=b@c", "ORCPT=rfc822;a+b@c",
        "ORCPT=rfc822;a+0D+0AX-Evil:+20yes", "ORCPT=rfc822;a+C3+A9@b", "ORCPT=rfc822;é@b",
        "ORCPT=rfc822;a@b ORCPT=rfc822;a@b", f"ORCPT=rfc822;{'x' * (MAX_ORCPT - 6)}",
        r"ORCPT=utf-8;\x{D800}@b", r"ORCPT=utf-8;\x{110000}@b", r"ORCPT=utf-8;\x{0D}@b",
        "ORCPT=utf-8;é@b", "ORCPT=utf-8;",
    ],
)  # fmt: skip
def test_rcpt_that_is_refused(text: str):
    """With 501; what spells a line end or anything that is not printable, too."""
    with pytest.raises(BadParameter, match=r"^501 5\.5\.4 "):
        take_rcpt([text] if "rf c" in text else text.split(" "), utf8=False)


def test_original_recipients():
    """As they were given; beyond ASCII in the form that is."""
    longest = f"rfc822;{'x' * (MAX_ORCPT - 7)}"
    assert rcpt(f"ORCPT={longest}").orcpt == longest
    assert original_recipient("rfc822;Bob+2Bx+3D@y.example") == ("rfc822", "Bob+x=@y.example")
    plain = rcpt(r"ORCPT=utf-8;\x{E9}@y.example")
    assert plain.orcpt == r"utf-8;\x{E9}@y.example"
    assert rcpt("ORCPT=UTF-8;é@y.example", utf8=True).orcpt == r"UTF-8;\x{E9}@y.example"
    assert original_recipient(plain.orcpt) == ("utf-8", "é@y.example")
    assert rcpt("ORCPT=X400;/c=us/".replace("=us", "+3Dus")).orcpt == "X400;/c+3Dus/"


def test_xtext():
    """Everything printable, there and back."""
    text = "".join(map(chr, range(32, 127)))
    spelt = to_xtext(text)
    assert spelt.startswith("+20!")
    assert "+2B" in spelt
    assert "+3D" in spelt
    assert from_xtext(spelt) == text


def test_what_is_said_to_the_next_server():
    """All that was said, and nothing where nothing was; what is written is read alike."""
    both = Dsn(
        MailParameters("HDRS", "a+2Bb"),
        (
            RcptParameters(),
            RcptParameters(Notify.NEVER, "rfc822;x@y"),
            RcptParameters(Notify.SUCCESS | Notify.FAILURE | Notify.DELAY),
        ),
    )
    assert both.of_mail() == b" RET=HDRS ENVID=a+2Bb"
    assert [both.of_rcpt(place) for place in range(3)] == [
        b"", b" NOTIFY=NEVER ORCPT=rfc822;x@y", b" NOTIFY=SUCCESS,FAILURE,DELAY",
    ]  # fmt: skip
    assert Dsn(MailParameters(), (RcptParameters(),)).of_mail() == b""
    assert mail(both.of_mail().decode()) == both.mail
    assert [rcpt(both.of_rcpt(place).decode()) for place in range(3)] == list(both.rcpt)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (DEFAULT, DEFAULT),
        (Notify.NEVER, Notify.NEVER),
        (Notify.SUCCESS, Notify.FAILURE),
        (Notify.FAILURE, Notify.FAILURE),
        (Notify.DELAY, Notify.FAILURE | Notify.DELAY),
        (Notify.SUCCESS | Notify.DELAY, Notify.FAILURE | Notify.DELAY),
    ],
)
def test_with_a_return_path_of_the_relays_own(asked: Notify, said: Notify):
    """It wants what fails, and tells of success itself; who wants nothing gets nothing."""
    dsn = Dsn(MailParameters("FULL", "x"), (RcptParameters(asked, "rfc822;x@y"),))
    assert dsn.returning_here() == Dsn(dsn.mail, (RcptParameters(said, "rfc822;x@y"),))
