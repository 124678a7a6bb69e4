"""Local parts: random ones for whoever asks for none, and role names, the administrator's alone.

Who receives mail for `admin@`, `postmaster@` or `hostmaster@` of a domain is given a certificate
for it (CA/Browser Forum baseline requirements, 3.2.2.4.4), is asked about abuse, and is believed to
speak for it.  So these names (RFC 2142, the CA/B list and its forerunners, the senders of bounces
and of letters that nobody answers) are `reserved`, whoever asks for one but the administrator.

Promises
- Case, dots, hyphens and other signs, a part behind a plus, full-width and accented letters,
  letters with a stroke, a bar or a hook, what fonts do not show, and letters of other scripts that
  look like Latin ones make no difference.
- An anonymous local part is ASCII: `[a-z0-9._+-]+`.

Digits are not taken for letters (`adm1n` is a name of its own), and words around a role name make
another name (`postmaster-of-ghent`).

Pure, but for the random bits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cached_property

from relay.addresses import canonical_domain
from relay.chance import randbits

_RFC2142 = """info marketing sales support abuse noc security postmaster hostmaster usenet news
    webmaster www uucp ftp"""
_CERTIFICATES = """admin administrator root ssladmin ssladministrator sslmaster sslwebmaster
    is it mis"""
_MACHINES = """mailerdaemon daemon nobody noreply donotreply system sysadmin hostadmin domainadmin
    dnsadmin certmaster"""

ROLES = frozenset(f"{_RFC2142} {_CERTIFICATES} {_MACHINES}".split())
"""The reserved names, as `folded` spells them."""

ANONYMOUS = re.compile(r"[a-z0-9._+-]+")
"""What an anonymous local part may be, once it is canonical."""

_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"

# Letters of other scripts that look like these: those of Unicode's confusables.txt that fonts show
# alike.
_LOOKALIKES = {
    "a": "аɑαᴀꭺꓮᏎ",
    "b": "ьƅᏼвβꓐʙᴃ",
    "c": "сϲσᴄⲥꮯꓚ",
    "d": "ԁɗꓓᏧꭰꓒᴅ",
    "e": "еєҽꬲεꓰꭼᴇ",
    "f": "ꞙϝꓝꬵƒꜰ",
    "g": "ɡցǥԍꓖꮐɢᏻ",
    "h": "һհηнꓧʜꮋ",
    "i": "іıɩιꙇӏլꓲꭵɪ",
    "k": "κкⲕꓗꮶᴋ",
    "l": "ӏιіıɭꓡꮮʟ",
    "m": "мꓟꮇᴍⲙμ",
    "n": "ոռпηνꓠⲛɴ",
    "o": "оοօᴏꓳⲟჿσɵө",
    "p": "рρⲣꓑꮲᴘ",
    "r": "гᴦⲅꭈꮁꓣꮢʀꭱ",
    "s": "ѕꜱꓢꮪƽ",
    "t": "тτꓔꭲᴛⲧ",
    "u": "սυᴜꞟʋꓴц",
    "v": "νѵᴠꓦꮩ",
    "w": "ѡԝաᴡꓪꮃω",
    "y": "уүγʏყꓬⲩ",
}


# Letters by their category, and shown as nothing (Default_Ignorable_Code_Point).
_UNSEEN = frozenset("\u115f\u1160\u3164\uffa0")


def folded(local_part: str) -> str:
    """What is left of a local part without case, marks, signs and what stands behind a plus."""
    plain = unicodedata.normalize("NFKD", local_part).casefold()
    plain = unicodedata.normalize("NFKD", plain)  # case folding may compose
    head = plain.lstrip("+.-_").partition("+")[0]
    return "".join(_plain(each) for each in head if each.isalnum() and each not in _UNSEEN)


def _plain(letter: str) -> str:
    """A letter without its stroke, bar, hook or tail, of which NFKD leaves it whole: ø is o."""
    base, with_, _ = unicodedata.name(letter, "").partition(" WITH ")
    if letter.isascii() or not with_:
        return letter
    try:
        return unicodedata.lookup(base)
    except KeyError:
        return letter


def random_local_part() -> str:
    """64 random bits as four pronounceable groups (proquints, arXiv:0901.4016).

    `relay.random_local_part` is the same in SQL.
    """
    groups = []
    for _ in range(4):
        word = randbits(16)
        groups.append(
            _CONSONANTS[word >> 12]
            + _VOWELS[word >> 10 & 3]
            + _CONSONANTS[word >> 6 & 15]
            + _VOWELS[word >> 4 & 3]
            + _CONSONANTS[word & 15]
        )
    return "-".join(groups)


class Names:
    """The reserved names of a relay.

    `domains` are those it receives for, the first the default; `senders` are addresses whose names
    are reserved like those of `ROLES` (the collector's sender).
    """

    def __init__(self, domains: Iterable[str], senders: Iterable[str] = ()) -> None:
        self._domains = frozenset(map(_domain, domains))
        own = (address.rpartition("@") for address in senders)
        words = {folded(local) for local, _, domain in own if _domain(domain) in self._domains}
        self._words = ROLES | words

    @cached_property
    def _reserved(self) -> re.Pattern[str]:
        # With the first question, for it takes 25 ms: names at random are never asked about.
        return re.compile("|".join(map(_seen_as, sorted(self._words))))

    def reserves(self, local_part: str) -> bool:
        """Whether a local part in any of the domains is the administrator's alone."""
        return self._reserved.fullmatch(folded(local_part)) is not None

    def reserves_address(self, address: str) -> bool:
        """Whether an address, in whatever spelling, is reserved; of other domains none is."""
        local, _, domain = address.rpartition("@")
        return _domain(domain) in self._domains and self.reserves(local)


def _seen_as(word: str) -> str:
    """A pattern for what looks like a word."""
    classes = []
    for letter in word:
        others = _LOOKALIKES.get(letter, "")
        classes.append(f"[{re.escape(letter)}{others}{others.casefold()}]")
    return "".join(classes) or r"(?!)"


def _domain(name: str) -> str:
    """The canonical spelling of a domain; as it is where that is none."""
    try:
        return canonical_domain(name)
    except ValueError:
        return name
