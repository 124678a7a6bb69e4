"""The short cut for plain mail makes what the long way makes."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.outbound.composing.compose import compose
from relay.outbound.composing.message import MalformedMessage
from relay.outbound.delivery.render import mail_of
from relay.smtp.client import Mail
from tests.outbound.claims import AT, ID, claimed

TEXTS = st.text(st.sampled_from("abc =?.,-\t\r\n\0\x1b\x7fé\u2028😀"), max_size=40)


@given(
    subject=TEXTS,
    text=TEXTS
    | st.builds(lambda count: "x" * count, st.integers(990, 1005))
    | st.builds(
        lambda lines, count: "line\n" * lines + "x" * count + "\n\n",
        st.integers(0, 300),
        st.integers(990, 1005),
    ),
    local=st.sampled_from(["a", "A.b", "a+b", "a..b", '"a b"', "a'b", "é", "x" * 64]),
    domain=st.sampled_from(["y.example", "Y.Example", "y..example", "bücher.example", "[1.2.3.4]"]),
)
@example(subject="Hello", text="Hi\n.dot\n", local="a", domain="y.example")
@example(subject="Hello", text="x" * 998, local="a", domain="y.example")
@example(subject="x" * 70, text="", local="a", domain="y.example")
def test_the_short_cut_makes_what_the_long_way_makes(subject, text, local, domain):
    """Whatever is claimed: the same bytes and envelope as `compose`, or the same refusal."""
    recipient = f"{local}@{domain}"
    row = claimed(recipient=recipient, subject=subject, text_body=text)
    try:
        wanted = compose(row.message, id=str(ID), date=AT)
    except MalformedMessage as error:
        with pytest.raises(MalformedMessage, match="^" + re.escape(str(error)) + "$"):
            mail_of(row)
        return
    mail = mail_of(row)
    for name in Mail.__slots__:
        assert getattr(mail, name) == getattr(wanted, name), name
