"""Which servers take a domain's mail: one test for each row of the table, and for its bounds."""

import random

import pytest

from relay.dns.questions import FAILED, NXDOMAIN, Answer, Question, found
from relay.outbound.mx.exchangers import (
    MOST_ADDRESSES,
    MOST_EXCHANGERS,
    Exchanger,
    Unreachable,
    candidates,
    in_order,
    interleaved,
    name_of,
    questions,
    usable,
)

OWN = frozenset({"relay.example"})
ONE = (Exchanger("mx.example", 0),)


def answers(**of: Answer) -> dict[Question, Answer]:
    """Answers about mx.example, or where `other_` is before the type, about other.example."""
    all_of = {
        Question(name, kind): found()
        for name in ("mx.example", "other.example")
        for kind in ("A", "AAAA")
    }
    for name, answer in of.items():
        host = "other.example" if name.startswith("other_") else "mx.example"
        all_of[Question(host, name.removeprefix("other_"))] = answer  # type: ignore[arg-type]
    return all_of


def code(got: object) -> tuple[bool, str]:
    """What an `Unreachable` means."""
    assert isinstance(got, Unreachable)
    return got.permanent, got.enhanced


def test_exchangers_are_ranked_by_preference_and_named_once():
    """Equal preferences share a rank; one that is named twice has its better preference."""
    records = found(
        "20 b.example", "10 A.Example", "20 c.example", "30 a.example", "5 first.example"
    )
    assert candidates("shop.example", records, OWN) == (
        Exchanger("first.example", 0),
        Exchanger("a.example", 1),
        Exchanger("b.example", 2),
        Exchanger("c.example", 2),
    )


def test_without_mx_the_domain_is_its_own_exchanger():
    """RFC 5321, 5.1: the implicit MX."""
    assert candidates("shop.example", found(), OWN) == (Exchanger("shop.example", 0),)


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (NXDOMAIN, (True, "5.1.2")),
        (found("0 ."), (True, "5.1.10")),
        (found("10 .", "20 ."), (True, "5.1.10")),
        (FAILED, (False, "4.4.3")),
        (found("10 192.0.2.1"), (True, "5.4.4")),
        (found("10 a b.example", "10 evil\r\n.example"), (True, "5.4.4")),
        (found("10 relay.example", "20 mx.example"), (True, "5.4.6")),
        (found("10 mx.example", "10 RELAY.example"), None),
    ],
)
def test_what_the_answer_about_mx_means(answer, means):
    """Only what is certain is permanent; a loop through this relay is."""
    got = candidates("shop.example", answer, OWN)
    if means is None:  # of the same preference as this relay: not tried either
        means = (True, "5.4.6")
    assert code(got) == means


def test_a_null_mx_beside_others_is_not_one():
    """RFC 7505, 3: it must be alone; what is beside it is meant."""
    assert candidates("shop.example", found("0 .", "10 mx.example"), OWN) == ONE


def test_only_better_exchangers_than_this_relay_are_tried():
    """RFC 5321, 5.1: those of the same or more preference would send it back."""
    records = found("5 mx.example", "10 relay.example", "10 same.example", "20 worse.example")
    assert candidates("shop.example", records, OWN) == ONE


def test_the_domain_itself_may_be_this_relay():
    """Without MX, mail for a name of this relay has nowhere to go."""
    assert code(candidates("relay.example", found(), OWN)) == (True, "5.4.6")


def test_too_many_exchangers_are_cut_to_the_best():
    """A stranger's list of a thousand costs as much as one of sixteen."""
    records = found(*(f"{1000 - n} m{n}.example" for n in range(1000)))
    got = candidates("shop.example", records, OWN)
    assert not isinstance(got, Unreachable)
    assert [one.name for one in got] == [f"m{999 - n}.example" for n in range(MOST_EXCHANGERS)]
    assert len(questions(got)) == 2 * MOST_EXCHANGERS


@pytest.mark.parametrize(
    ("of", "implicit", "private", "expected"),
    [
        ({"A": found("192.0.9.1")}, False, False, ("192.0.9.1",)),
        (
            {"AAAA": found("2a00::1"), "A": found("192.0.9.1")},
            False,
            False,
            ("2a00::1", "192.0.9.1"),
        ),
        ({"AAAA": FAILED, "A": found("192.0.9.1")}, False, False, ("192.0.9.1",)),
        ({"A": found("10.0.0.1", "192.0.9.1")}, False, False, ("192.0.9.1",)),
        ({"A": found("10.0.0.1")}, False, False, (True, "5.4.4")),
        ({"A": found("127.0.0.1"), "AAAA": found("::1", "fe80::1")}, True, False, (True, "5.4.4")),
        ({"A": found("169.254.169.254")}, True, False, (True, "5.4.4")),
        ({"AAAA": found("::ffff:10.0.0.1")}, True, False, (True, "5.4.4")),
        ({"A": found("10.0.0.1")}, False, True, ("10.0.0.1",)),
        ({"A": found("10.0.0.1"), "AAAA": FAILED}, False, False, (False, "4.4.3")),
        ({"A": FAILED, "AAAA": FAILED}, False, False, (False, "4.4.3")),
        ({"A": NXDOMAIN, "AAAA": NXDOMAIN}, False, False, (True, "5.4.4")),
        ({}, False, False, (True, "5.4.4")),
        ({}, True, False, (True, "5.1.2")),
    ],
)
def test_what_the_answers_about_addresses_mean(of, implicit, private, expected):
    """Addresses that are not public are left out; none left is permanent if that is certain."""
    got = usable(ONE, answers(**of), implicit=implicit, private=private)
    if isinstance(expected[0], bool):
        assert code(got) == expected
    else:
        assert got == (Exchanger("mx.example", 0, expected),)


def test_one_usable_exchanger_is_enough():
    """What cannot be found out of one does not keep mail from another."""
    named = (*ONE, Exchanger("other.example", 1))
    got = usable(
        named,
        answers(A=FAILED, AAAA=FAILED, other_A=found("192.0.9.7")),
        implicit=False,
        private=False,
    )
    assert got == (Exchanger("other.example", 1, ("192.0.9.7",)),)


def test_families_take_turns_and_are_bounded():
    """RFC 8305, 4: an IPv6 that is broken does not stand before every IPv4."""
    assert interleaved(["2a00::1", "2a00::2", "2a00::3"], ["192.0.9.1"]) == (
        *("2a00::1", "192.0.9.1", "2a00::2", "2a00::3"),
    )
    many = [f"192.0.9.{n}" for n in range(100)]
    assert len(interleaved([], many)) == MOST_ADDRESSES


def test_equal_preference_is_shuffled_and_the_rest_kept_in_order():
    """Over many attempts each of the equal ones comes first, and none before a better one."""
    of = [
        Exchanger("best", 0),
        *(Exchanger(f"equal{n}", 1) for n in range(3)),
        Exchanger("last", 2),
    ]
    rng = random.Random(1)
    orders = [[one.name for one in in_order(of, (), rng)] for _ in range(100)]
    assert {(order[0], order[-1]) for order in orders} == {("best", "last")}
    assert {order[1] for order in orders} == {"equal0", "equal1", "equal2"}


def test_what_failed_lately_is_tried_last():
    """A dead primary does not cost every connection its time-out."""
    of = [Exchanger("best", 0), Exchanger("next", 1), Exchanger("last", 2)]
    order = in_order(of, {"best"}, random.Random(1))
    assert [one.name for one in order] == ["next", "last", "best"]


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        ("Shop.Example", "shop.example"),
        ("faß.de", "xn--fa-hia.de"),
        ("münchen.example", "xn--mnchen-3ya.example"),
        ("xn--fa-hia.de", "xn--fa-hia.de"),
        ("shop.example.", "shop.example"),
        ("[192.0.2.1]", None),
        ("[IPv6:2001:db8::1]", None),
        ("192.0.2.1", None),
        ("a..example", None),
        ("", None),
        ("shop .example", None),
        ("x" * 64 + ".example", None),
    ],
)
def test_names_are_asked_for_as_a_labels(domain, name):
    """Literals and what is no name are refused for good, whoever queued them."""
    got = name_of(domain)
    if name is None:
        assert code(got) == (True, "5.1.2")
    else:
        assert got == name
