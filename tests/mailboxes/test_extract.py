"""Verification codes and links in text."""

import time

import pytest

from relay.mailboxes.extract import find_code, find_links

CODES = [
    ("Your code is 123456", "", "123456"),
    ("123456 is your verification code", "", "123456"),
    ("", "Your verification code:\n\n  482913\n\nIt expires in 10 minutes.", "482913"),
    ("Verify", "Use code 4821 to sign in.", "4821"),
    ("", "Tu código de verificación es 771203.", "771203"),
    ("", "Ihr Bestätigungscode lautet: 551200", "551200"),
    ("", "Votre code de vérification est 90210", "90210"),
    ("", "Your code: AB12-CD34", "AB12-CD34"),
    ("", "您的验证码是123456，请勿泄露", "123456"),
    ("", "您的验证码：123456", "123456"),
    ("", "Ваш код подтверждения: 8842", "8842"),
    ("", "G-482913 is your Google verification code.", "482913"),
    ("", "Your OTP is 123 456", "123456"),
    ("", "Enter 123-456 as your code", "123456"),
    ("", "Code:998877", "998877"),
    ("", "認証コード：445566", "445566"),
    ("", "<#> 77881 is your Telegram code", "77881"),
    ("Login code: 12345", "", "12345"),
    ("", "Seu código é 12345678", "12345678"),
    ("", "Your passcode is 2024", "2024"),
    (
        "",
        "Your verification code is 834201. Do not share. (c) 2025 Acme, 1234 Main Street",
        "834201",
    ),
    ("", "Your single-use code is:\n\nK7QX2P\n", "K7QX2P"),
    ("", "Enter 551209 to confirm your account", "551209"),
    ("", "Please type **AB12CD** to confirm", "AB12CD"),
    ("", "Enter this code to continue: WDJB-MJHT", "WDJB-MJHT"),
    ("", "Your confirmation code is\n\n**003921**\n", "003921"),
    ("", "Il tuo codice di verifica è 481516", "481516"),
    ("Relay code 314159", "see inside", "314159"),
    ("", "PIN: 0042", "0042"),
    ("", "Kod weryfikacyjny: 667788", "667788"),
    ("", "Your account code expires in 3600 seconds: 224466", "224466"),
    ("", "Hi Bob,\nhere is your code\n135790\nThanks, since 1999", "135790"),
    (
        "Your activation",
        "Your login: bob\nYour code: 12345\nhttps://a.example/activate?token=abcdef",
        "12345",
    ),
]

NO_CODES = [
    ("", "Ihr Bestätigungscode lautet: 55 1200"),
    ("Welcome", "Copyright 2024 Verification Inc. Call +1 555 123 4567 to verify your account."),
    ("", "Order total: $1234. Verify your order number 88213 now"),
    ("", "Your order 123456 has shipped. Use promo code SAVE2024 next time."),
    ("Invoice 20240101", "Amount 1500 EUR due 2024"),
    ("", "Zip code 94107"),
    ("", "Our office: 1600 Amphitheatre Parkway. Please verify your email by clicking the link."),
    ("", "In 2024 we changed the code of conduct"),
    ("Meeting 2025", "The code review is at 1430 on 2025-01-02"),
    ("", "error code 40412 happened"),
    ("", "Hello there, please find 3 files"),
    ("Confirm your email", "Click https://x.example/verify?code=123456&u=2 to confirm"),
    ("", "To verify, call 555-1234"),
    ("", "Your code is 12.50 EUR"),
    ("", "Text YES to 12345 to confirm your account"),
    ("", "Follow the link to confirm your booking 551209"),
    ("", "Enter hall 4821 to confirm that you are here"),
    ("", "Enter 4821 points to confirm"),
    ("", "Center 551209 to confirm"),
    ("", "You paid 123456 points, code"),
]


@pytest.mark.parametrize(("subject", "text", "code"), CODES)
def test_finds_the_code(subject, text, code):
    """A code near a word for one, in any of several languages, is found and spelled to be typed."""
    assert find_code(subject, text) == code


@pytest.mark.parametrize(("subject", "text"), NO_CODES)
def test_takes_no_other_number_for_a_code(subject, text):
    """Years, prices, telephone, order and postal numbers, and numbers in links are not codes."""
    assert find_code(subject, text) is None


@pytest.mark.parametrize("year", range(1990, 2031, 4))
def test_takes_no_year_for_a_code(year):
    """A year is no code, also where a word for a code is near."""
    assert find_code("", f"The verification team thanks you for {year}, a good year.") is None
    assert find_code("", f"© {year} Verification Ltd. Do not share your password.") is None


def test_lists_links_once_in_order():
    """Links come from text and href, each once, in order, with entities decoded."""
    text = "See http://b.example/a?b=c&d=e, then http://b.example/a?b=c&d=e."
    markup = '<a href="https://c.example/?a=1&amp;b=2">x</a> <A HREF=http://d.example/z>y</A>'
    assert find_links(text, markup) == [
        "https://c.example/?a=1&b=2",
        "http://d.example/z",
        "http://b.example/a?b=c&d=e",
    ]


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("(https://a.example/x_(y))", "https://a.example/x_(y)"),
        ("Go to https://a.example/x!", "https://a.example/x"),
        ("<https://a.example/x>", "https://a.example/x"),
        ("[1]: https://a.example/x?y=[z]", "https://a.example/x?y=[z]"),
        ("https://a.example/x。", "https://a.example/x"),
    ],
)
def test_trims_the_punctuation_of_the_sentence(text, link):
    """What ends the sentence is not part of the link; balanced brackets are."""
    assert find_links(text, "") == [link]


def test_puts_links_that_act_first():
    """A link to confirm something comes before others, an unsubscription does not."""
    text = "https://a.example/ https://a.example/unsubscribe?token=1 https://a.example/verify?t=2"
    assert find_links(text, "") == [
        "https://a.example/verify?t=2",
        "https://a.example/",
        "https://a.example/unsubscribe?token=1",
    ]


@pytest.mark.parametrize(
    ("written", "link"),
    [
        (r"https://evil.example\@shop.example/a", "https://evil.example/@shop.example/a"),
        (r"https://evil.example/a?b=\#\c", r"https://evil.example/a?b=\#\c"),
        ("https://shop.ex\tample/\r\na\n", "https://shop.example/a"),
        (
            "https://a.example/&#157;2J\x9b31m\x1b[2J",
            "https://a.example/%C2%9D2J%C2%9B31m%1B[2J",
        ),
        ("https://a.example/ ##vso[a]", "https://a.example/%20##vso[a]"),
        (
            "https://a.example/\u202emoc.knab\u2066\xa0\u200b",
            "https://a.example/%E2%80%AEmoc.knab%E2%81%A6%C2%A0%E2%80%8B",
        ),
        ("https://a.example/<b>`", "https://a.example/%3Cb%3E%60"),
        ("https://a.example/é/%41 b", "https://a.example/é/%41%20b"),
    ],
)
def test_lists_links_as_browsers_read_them(written, link):
    """What would be read otherwise elsewhere, drives a terminal, or is not seen, is spelt so."""
    assert find_links("", f'<a href="{written}">x</a>') == [link]


def test_spells_what_is_not_seen_in_links_of_text():
    """They go through the same hands."""
    assert find_links("At https://a.example/\x9b2J\u202eb .", "") == [
        "https://a.example/%C2%9B2J%E2%80%AEb"
    ]


def test_ignores_other_schemes():
    """Only http and https are links."""
    markup = '<a href="javascript:alert(1)">x</a><a href="mailto:a@b.example">y</a>'
    assert find_links("ftp://a.example file:///etc/passwd", markup) == []


@pytest.mark.parametrize(
    "text",
    [
        "1234 " * 40_000,
        "code" * 50_000,
        "ABC-" * 50_000,
        "code 1234 " * 20_000,
        "https://" * 30_000,
    ],
)
def test_hostile_text_costs_little(text):
    """Repetitions of what the patterns look for take CPU time in proportion, not more."""
    began = time.process_time()
    find_code(text, text)
    find_links(text, text)
    small = time.process_time() - began
    began = time.process_time()
    find_code(text * 4, text * 4)
    find_links(text * 4, text * 4)
    assert time.process_time() - began < 16 * small + 1
