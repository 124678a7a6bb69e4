"""Traffic rules: what a file may say, whose rules a site has, and what a reply means."""

from __future__ import annotations

import pytest

from relay.errors import ConfigError
from relay.outbound.pacing.rate import Rate
from relay.outbound.shaping.file import SHIPPED, ShapingFile
from relay.outbound.shaping.rules import (
    LEAST_FACTOR,
    WITHIN,
    Asks,
    Counts,
    Limits,
    Provider,
    ReplyRule,
    Rules,
    parse,
)
from relay.smtp.client import Outcome, Phase, Verdict

WHOLE = """
[default]
messages = 100
[[default.replies]]
code = "4xx"
text = "go away for now"
suspend = "10m"

[provider.big]
mx = [".big.example", "mail.other.example"]
domains = ["Big.example", "bücher.example"]
connections = 4
messages = 20
rate = "600/m"

[[provider.big.replies]]
code = [421, "45x"]
enhanced = "4.7.x"
slow = "1h"
to = 0.25
after = 3

[[provider.big.replies]]
code = 550
enhanced = "5.1.1"
suppress = true
"""


def reply(
    code: int | None,
    enhanced: str | None = None,
    text: str = "",
    phase: Phase = Phase.RCPT,
    verdict: Verdict = Verdict.DEFERRED,
) -> Outcome:
    """What came back."""
    return Outcome(verdict, phase, code, enhanced, text, False, True)


def test_a_file_is_read_whole():
    """Each key, in each of its forms."""
    rules = parse(WHOLE, "rules.toml")
    (big,) = rules.providers
    assert (big.name, big.hosts) == ("big", ("big.example", "mail.other.example"))
    assert big.domains == ("big.example", "xn--bcher-kva.example")
    assert big.limits == Limits(4, 20, Rate(10.0, 10.0))
    slow, suppress = big.replies
    assert (slow.asks, slow.seconds, slow.factor, slow.after) == (Asks.SLOW, 3600.0, 0.25, 3)
    assert (slow.codes, slow.enhanced, slow.line) == (("421", "45x"), "4.7.x", 16)
    assert suppress.asks is Asks.SUPPRESS
    assert rules.default.limits == Limits(None, 100, None)
    assert rules.limits_rates
    assert parse("", "empty.toml") == Rules()


def test_what_is_shipped_can_be_read_and_knows_the_large_providers():
    """By their hosts and by their domains."""
    rules = ShapingFile.load().rules
    for domain, hosts, name in [
        ("gmail.com", ["gmail-smtp-in.l.google.com"], "google"),
        ("shop.example", ["aspmx.l.google.com", "alt1.aspmx.l.google.com"], "google"),
        ("hotmail.de", ["hotmail-com.olc.protection.outlook.com"], "outlook"),
        ("shop.example", ["shop-example.mail.protection.outlook.com"], "microsoft365"),
        ("yahoo.de", ["mx-eu.mail.am0.yahoodns.net"], "yahoo"),
        ("icloud.com", ["mx01.mail.icloud.com", "mx02.mail.icloud.com"], "icloud"),
        ("web.de", ["mx-ha02.web.de"], "gmx"),
    ]:
        found = rules.provider(domain, hosts)
        assert found is not None, domain
        assert found.name == name
        assert found.limits.connections
        assert found.limits.messages
    assert rules.provider("shop.example", ["mx.shop.example"]) is None
    # Each figure says where it is from.
    lines = SHIPPED.read_text("utf-8").splitlines()
    figures = [line for line in lines if line.startswith(("connections", "messages"))]
    assert figures
    for number, line in enumerate(lines):
        if line.startswith(("connections", "messages")):
            above = next(one for one in lines[number::-1] if not one.startswith(("conn", "mess")))
            assert "  # " in line or above.startswith("# "), line


@pytest.mark.parametrize(
    ("name", "said", "asks"),
    [
        ("google", reply(421, "4.7.28", "Gmail has detected an unusual rate"), Asks.SLOW),
        ("google", reply(550, "5.1.1", "The email account that you tried to"), Asks.SUPPRESS),
        ("google", reply(452, "4.2.2", "The recipient's inbox is out of storage"), None),
        ("google", reply(550, "5.7.26", "Unauthenticated email is not accepted"), None),
        ("icloud", reply(550, "5.1.1", "<a@icloud.com>: user does not exist"), Asks.SUPPRESS),
        ("icloud", reply(550, "5.7.1", "[CS01] Message rejected due to local policy"), None),
        (
            "yahoo",
            reply(554, None, "delivery error: dd This user doesn't have a yahoo.com account"),
            Asks.SUPPRESS,
        ),
        ("yahoo", reply(553, "5.7.1", "[BL21] Connections will not be accepted"), Asks.SUSPEND),
        ("yahoo", reply(554, "5.7.9", "Message not accepted for policy reasons"), None),
        ("microsoft365", reply(550, "5.1.10", "RecipientNotFound; not found"), Asks.SUPPRESS),
        ("microsoft365", reply(550, "5.4.1", "Recipient address rejected: Access denied"), None),
        ("outlook", reply(550, "5.5.0", "Requested action not taken: mailbox unavailable"), None),
        ("gmx", reply(550, None, "Requested action not taken: mailbox unavailable"), Asks.SUPPRESS),
        (
            "gmx",
            reply(550, None, "Requested action not taken: mailbox unavailable Unknown user"),
            Asks.SUPPRESS,
        ),
        ("gmx", reply(552, None, "Requested mail action aborted: exceeded storage"), None),
        ("gmx", reply(450, None, "Rate limit reached. Please try again later"), Asks.SUSPEND),
        ("", reply(550, "5.1.1", "no such user"), Asks.SUPPRESS),
        ("", reply(550, "5.7.1", "relaying denied"), None),
        ("", reply(550, "5.1.8", "sender address rejected"), None),
    ],
)
def test_what_is_shipped_knows_what_providers_say(name: str, said: Outcome, asks: Asks | None):
    """Who is gone is told from who is full, from policy and from what is said of the sender."""
    rules = ShapingFile.load().rules
    provider = next((one for one in rules.providers if one.name == name), rules.default)
    final = said.code is not None and said.code >= 500
    verdict = Verdict.BOUNCED if final else Verdict.DEFERRED
    found = rules.meaning(provider, said._replace(verdict=verdict))
    assert (found and found.asks) == asks


@pytest.mark.parametrize(
    ("last", "asks"),
    [
        # github.com/jstedfast/MailKit, issue 968
        ("Failure sending mail. Try again later", None),
        # github.com/loganmarchione/docker-postfixrelay, issue 46
        ("Sender address is not allowed.", None),
        ("invalid DNS MX or A/AAAA resource record", None),
        ("Reject due to SPF policy. The originating IP of the message is not permitted", None),
        ("Reject due to policy restrictions. For explanation visit https://x", Asks.SUSPEND),
        ("For explanation visit https://postmaster.web.de/en/case?c=r1601", None),
        ("A line that nobody knows yet", None),
    ],
)
def test_the_last_line_of_a_refusal_by_gmx_decides(last: str, asks: Asks | None):
    """Its first is the same for many: that the mailbox is unavailable."""
    gmx = ShapingFile.load().rules.named("gmx")
    said = reply(550, None, f"Requested action not taken: mailbox unavailable {last}")
    found = ShapingFile.load().rules.meaning(gmx, said._replace(verdict=Verdict.BOUNCED))
    assert (found and found.asks) == asks


@pytest.mark.parametrize("last", ["Rejected for policy reasons", "Please try again later"])
def test_nothing_that_is_shipped_suppresses_for_policy_or_for_now(last: str):
    """Whatever a rule fits, with the code that it has."""
    rules = ShapingFile.load().rules
    gone = (
        reply(550, "5.1.1", "no such user"),
        reply(550, "5.1.10", "RecipientNotFound; not found"),
        reply(554, None, "delivery error: dd This user doesn't have a yahoo.com account"),
        reply(550, None, "Requested action not taken: mailbox unavailable unknown user"),
    )
    suppressing = set()
    for provider in (*rules.providers, rules.default):
        for said in gone:
            found = rules.meaning(provider, said)
            if found is not None and found.asks is Asks.SUPPRESS:
                suppressing.add(said)
            found = rules.meaning(provider, said._replace(text=f"{said.text} {last}"))
            assert found is None or found.asks is not Asks.SUPPRESS
    assert suppressing == set(gone)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\na = [\n1 2]", "are not valid TOML: Unclosed array (at line 3, column 3)"),
        ("[defualt]\n", "line 1: defualt: there is no such key; did you mean default?"),
        ("\nfoo = 1", "line 2: foo: there is no such key"),
        ("provider = 1", "line 1: provider: providers are tables, as [provider.example]"),
        ("[provider]\na = 1", "line 2: provider.a: it must be a table"),
        ("[provider.'A b']\nmx=['a.example']", "line 1: provider.A b: 'A b' is no name"),
        ("[provider.a]\nconnections = 4", "line 1: provider.a: it says neither mx nor domains"),
        ("[provider.a]\n\nmx = 'a.example'", "line 3: provider.a.mx: it must be a list of names"),
        (
            "[provider.a]\nmx = ['example']",
            "line 2: provider.a.mx: 'example' is no domain",
        ),
        ("[provider.a]\ndomains = ['a b']", "line 2: provider.a.domains: 'a b' is no domain"),
        ("[default]\nmx = ['a.example']", "line 2: default.mx: there is no such key"),
        ("[default]\nconnections = 0", "line 2: default.connections: it must be a whole number"),
        ("[default]\nconnections = true", "line 2: default.connections: it must be a whole number"),
        ("[default]\nmessages = 1.5", "line 2: default.messages: it must be a whole number"),
        ("[default]\nrate = 5", "line 2: default.rate: it must be how many mails"),
        ("[default]\nrate = '5/fortnight'", "line 2: default.rate: it must be how many mails"),
        ("[default]\nrate = '0/s'", "line 2: default.rate: it must be how many mails"),
        ("[default]\nreplies = 1", "line 2: default.replies: replies are tables"),
        (
            "[provider.a]\ndomains=['a.example']\n[provider.b]\ndomains=['a.example']",
            "line 4: provider.b.domains: a.example is a's already",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_by_line(text: str, says: str):
    """In one sentence, with the key."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "rules.toml")
    assert says in str(caught.value)
    assert "rules.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["code = 421"], "line 7: default.replies: a reply asks for one of"),
        (["code = 421", "slow = '1h'", "suspend = '1h'"], "line 7: default.replies: a reply asks"),
        (["slow = '1h'"], "line 7: default.replies: it says of no reply what it means"),
        (["code = 421", "slwo = '1h'"], "line 9: default.replies.slwo: there is no such key; did"),
        (["code = 250", "slow = '1h'"], "line 8: default.replies.code: it must be a code of 4yz"),
        (["code = '4x1'", "slow = '1h'"], "line 8: default.replies.code: it must be a code of 4yz"),
        (["code = true", "slow = '1h'"], "line 8: default.replies.code: it must be a code of 4yz"),
        (["enhanced = '4.7'", "slow = '1h'"], "line 8: default.replies.enhanced: it must be"),
        (["text = 1", "slow = '1h'"], "line 8: default.replies.text: it must be a text"),
        (["text = '(a+)+'", "slow = '1h'"], "line 8: default.replies.text: '(a+)+' repeats"),
        (["code = 421", "slow = 60"], "line 9: default.replies.slow: it must be for how long"),
        (["code = 421", "slow = '8d'"], "line 9: default.replies.slow: it must be for how long"),
        (["code = 421", "suspend = '1w'"], "line 9: default.replies.suspend: a duration is"),
        (["code = 421", "slow = '1h'", "to = 1"], "line 10: default.replies.to: what is left"),
        (["code = 421", "slow = '1h'", "to = '1'"], "line 10: default.replies.to: it must be a n"),
        (["code = 421", "suspend = '1h'", "to = 0.5"], "line 10: default.replies.to: it says to"),
        (["code = 421", "slow = '1h'", "after = 0"], "line 10: default.replies.after: it must be"),
        (["code = 450", "suppress = true"], "line 9: default.replies.suppress: only what is ref"),
        (["enhanced = '4.1.1'", "suppress = true"], "line 9: default.replies.suppress: only what"),
        (["enhanced = '5.7.1'", "suppress = true"], "line 9: default.replies.suppress: 5.7.z is"),
        (["code = 550", "suppress = false"], "line 9: default.replies.suppress: it can only be"),
    ],
)
def test_what_is_wrong_with_a_reply_is_said_by_line(lines: list[str], says: str):
    """Of the second of two, too."""
    first = ["[default]", "messages = 1", "[[default.replies]]", "code = 421", "slow = '1h'", ""]
    with pytest.raises(ConfigError) as caught:
        parse("\n".join([*first, "[[default.replies]]", *lines]), "rules.toml")
    assert f"rules.toml, {says}" in str(caught.value)


def test_a_site_is_a_providers_only_if_all_of_its_hosts_are():
    """Whoever lists a provider's server beside their own is a stranger."""
    rules = parse(WHOLE, "rules.toml")
    (big,) = rules.providers
    assert rules.provider("x.example", ["mx1.big.example", "MX2.BIG.example."]) is big
    assert rules.provider("x.example", ["big.example"]) is big
    assert rules.provider("x.example", ["notbig.example"]) is None
    assert rules.provider("x.example", ["mx1.big.example", "mx.evil.example"]) is None
    assert rules.provider("x.example", []) is None
    # Of whom a domain is, its rule says; whatever its hosts.
    assert rules.provider("BIG.example", ["mx.elsewhere.example"]) is big
    assert rules.provider("sub.big.example", ["mx.elsewhere.example"]) is None
    assert (rules.named("big"), rules.named("none")) == (big, rules.default)


def test_what_a_reply_means():
    """By code, by enhanced code, by text; the provider's own rules before those for all."""
    rules = parse(WHOLE, "rules.toml")
    (big,) = rules.providers
    slow, suppress = big.replies
    (away,) = rules.default.replies
    assert rules.meaning(big, reply(421, "4.7.28")) is slow
    assert rules.meaning(big, reply(452, "4.7.0", phase=Phase.CONNECT)) is slow
    assert rules.meaning(big, reply(421, "4.4.5")) is None
    assert rules.meaning(big, reply(441, "4.7.0")) is None
    assert rules.meaning(big, reply(421, None)) is None
    assert rules.meaning(big, reply(450, "4.2.0", "Go away for now!")) is away
    assert rules.meaning(rules.default, reply(450, "4.2.0", "Go away for now!")) is away
    assert rules.meaning(rules.default, reply(421, "4.7.28")) is None
    assert rules.meaning(big, reply(550, "5.1.1", verdict=Verdict.BOUNCED)) is suppress
    # What no server said means nothing, and neither does what was taken.
    assert rules.meaning(big, reply(None, None, "go away for now")) is None
    assert rules.meaning(big, reply(421, "4.7.1", verdict=Verdict.DELIVERED)) is None


def test_only_a_final_refusal_of_a_recipient_suppresses():
    """Not at the greeting, not of the sender, not for policy."""
    rule = ReplyRule(Asks.SUPPRESS, 1, codes=("5xx",))
    for phase in (Phase.RCPT, Phase.DATA, Phase.DOT):
        assert rule.fits(reply(550, "5.1.1", phase=phase))
    for phase in (Phase.CONNECT, Phase.EHLO, Phase.TLS, Phase.AUTH, Phase.MAIL):
        assert not rule.fits(reply(550, "5.1.1", phase=phase))
    assert not rule.fits(reply(550, "5.7.1"))
    for said in (
        "blocked using zen.spamhaus.org",
        "Rejected as spam",
        "fails DMARC policy",
        "Access denied for 192.0.2.1 due to abuse",
        "unauthenticated sender, rejected",
        "temporary failure",
    ):
        assert not rule.fits(reply(550, "5.1.1", said))
    # Nor by a rule of words that fits one line of several.
    of_words = parse("[[default.replies]]\ntext = 'no user'\nsuppress = true", "rules.toml")
    assert of_words.default.replies[0].fits(reply(550, "5.1.1", "No user here"))
    assert not of_words.default.replies[0].fits(reply(550, "5.1.1", "No user here Access denied"))
    assert not ReplyRule(Asks.SUPPRESS, 1, enhanced="5.1.x").fits(reply(450, "5.1.1"))


def test_limits_are_slowed_and_never_to_nothing():
    """One connection and one mail are left; mails on a connection stay as they are."""
    limits = Limits(10, 50, Rate(100.0, 100.0))
    assert limits.slowed(0.25) == Limits(2, 50, Rate(25.0, 25.0))
    assert limits.slowed(LEAST_FACTOR).connections == 1
    assert Limits(1, 5, Rate(0.5, 1.0)).slowed(0.5) == Limits(1, 5, Rate(0.25, 1.0))
    assert Limits().slowed(0.5) == Limits()


def test_so_many_replies_within_an_hour_count():
    """Each receiver's by themselves; what is older than an hour does not."""
    counts = Counts()
    rule = ReplyRule(Asks.SLOW, 3, after=3)
    assert [counts.met("a", rule, at) for at in (0.0, 1.0, 2.0)] == [False, False, True]
    assert not counts.met("b", rule, 2.0)
    late = [counts.met("c", rule, at) for at in (0.0, WITHIN, WITHIN + 1, WITHIN + 2)]
    assert late == [False, False, False, True]
    assert counts.met("d", ReplyRule(Asks.SLOW, 9), 0.0)


def test_a_file_that_cannot_be_used_keeps_the_rules_of_before(tmp_path):
    """Said once, and the next good one is taken up."""
    path = tmp_path / "rules.toml"
    path.write_text(WHOLE)
    file = ShapingFile.load(str(path))
    before = file.rules
    for broken in (b"[provider.a", b"\xff", b"[default]\nrate = 1"):
        path.write_bytes(broken)
        file.reload()
        assert file.rules is before
    path.unlink()
    file.reload()
    assert file.rules is before
    path.write_text("[default]\nconnections = 2")
    file.reload()
    assert file.rules.default == Provider("", Limits(2))
    with pytest.raises(ConfigError, match=r"RELAY_OUTBOUND__SHAPING is .* cannot be read"):
        ShapingFile.load(str(tmp_path / "none.toml"))
