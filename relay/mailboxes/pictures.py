"""A message's HTML, written anew so that nothing in it loads but pictures.

Promises
- What comes out is read by a browser as it was read here: each tag is written with its attributes
  once and quoted, text has no "<", styles are cut into tokens as CSS has them; there are no
  comments, scripts, frames, bases, links to styles, or animations.
- What loads are pictures: `src` of images (of a `srcset` the first, where it stands alone, or is
  that of a picture's source for light or dark mode), backgrounds, and `url(…)` where a style takes
  a picture.  Those in the message have the addresses that they are given; those elsewhere keep the
  one that their sender wrote, once they are loaded, and have none before.  They are counted, and
  nothing that is not counted asks for anything: neither an import, a font, a poster, SVG nor an
  address without a host.
- Time linear in the markup, whatever it is: one pass, which never goes back; a tag without an end
  ends the page, as it does in a browser.
- The page grows by `MOST_PLACED` addresses at most, however often it names a picture: what it
  becomes waits in memory for whoever reads it slowly.

Why anew, and not in place: the policy that the page is sent with can name places, but not say
which of their pictures were counted.  In place, a tag that a browser reads otherwise than this
does would be a request that nobody was told of.

Pure.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from urllib.parse import unquote

from relay.mailboxes.extract import unescape

MOST = 1000
"""Pictures of a message that have a place; others have none."""
MOST_PLACED = 5000
"""Times that a message's pictures are given one; from there on they have none."""

Place = Callable[[str], str | None]
"""The address under which a picture is shown instead, or None: not at all."""

_DOCTYPE = re.compile(r"\s*+<!doctype[^<>]*+>", re.IGNORECASE)
_NAME = re.compile(r"/?([a-zA-Z][^\t\n\f\r />]*+)")
_PLAIN = re.compile(r"[a-z][a-z0-9:._-]*+")  # a name that is written as it was read
_ATTRIBUTE = re.compile(
    r"""[\t\n\f\r /]*+([^\t\n\f\r />][^\t\n\f\r />=]*+)"""
    r"""(?:[\t\n\f\r ]*+=[\t\n\f\r ]*+("[^"]*"|'[^']*'|[^\t\n\f\r >"'][^\t\n\f\r >]*+))?"""
)
_TAG_END = re.compile(r"[\t\n\f\r /]*+>")
_RAW = frozenset(
    {"script", "style", "title", "textarea", "xmp", "iframe", "noembed", "noframes"}
)  # what a browser reads no tags in
_GONE = frozenset(
    {"script", "title", "iframe", "noembed", "noframes", "base", "link", "embed", "frame"}
    | {"frameset", "noscript", "meta"}
)
_RENAMED = frozenset({"object", "applet", "portal", "fencedframe", "template", "plaintext"})
"""Elements that are shown as their contents: a browser does not know what they become."""
_CELLS = frozenset({"body", "table", "thead", "tbody", "tfoot", "tr", "td", "th"})
"""Elements whose `background` is a picture."""
_UNKEPT = re.compile(
    r"on.*|.*(?:src|href|action|poster|srcset).*|data|ping|target|loading|crossorigin|autofocus"
    r"|referrerpolicy|attributename|manifest|codebase|archive|background|style|shadowroot.*"
)
_TEXTS = frozenset(
    {"alt", "title", "class", "id", "name", "value", "placeholder", "label", "abbr", "summary"}
    | {"media", "face", "for", "datetime"}
)  # attributes that are words, whatever is in them
_REACHES = re.compile(r"[:/\\]")
_SCHEME = re.compile(r"\b(?:light|dark|only)\b")
# Possessive: a thousand blanks are looked at once.
_CANDIDATE = re.compile(r"[\s,]*+([^\s,]\S*[^\s,])(?:\s|,|$)")
_REMOTE = re.compile(
    r"(?:https?:)?//(?:[a-z0-9._-]++|\[[0-9a-f:.]++\])(?::[0-9]{1,5}+)?(?:[/?#].*+)?",
    re.IGNORECASE | re.ASCII,
)
_BREAKS = re.compile(r"[\t\n\r]")
_ENDS = "".join(map(chr, range(0x21)))  # what a browser takes off both ends of an address

# What a style is made of, as CSS has it: comment, string, name or function, all other.
_ESCAPE = r"\\[^\n]"
_STRING = "|".join(
    rf"{quote}(?:[^{quote}\\\n]++|\\[\s\S])*+(?:{quote}|(?=\n)|\\?+\Z)" for quote in ('"', "'")
)
_TOKEN = re.compile(
    rf"(/\*(?:[^*]++|\*(?!/))*+(?:\*/)?+|<!--|-->)|({_STRING})"
    rf"|(@?+(?:[a-zA-Z0-9_\x80-\U0010ffff-]|{_ESCAPE})++\(?+)|([{{}};:()])|([^\S\n]++|[\s\S])"
)
_URL_REST = re.compile(
    r'[\t\n ]*+(?:"((?:[^"\\\n]++|\\[\s\S])*+)"|' + r"'((?:[^'\\\n]++|\\[\s\S])*+)'"
    rf"|((?:[^\"'()\\\t\n ]++|{_ESCAPE})*+))[\t\n ]*+\)"
)
_BAD_URL = re.compile(r"(?:[^)\\]++|\\[\s\S])*+(?:\)|\\?+\Z)")
_CSS_ESCAPE = re.compile(r"\\(?:([0-9a-fA-F]{1,6})[\t\n ]?|(\n)|([\s\S]))")
_CSS_REACHES = re.compile(r"[\\<&@\0]|-->|url|image|src|fade|element|paint", re.IGNORECASE)
_CSS_BREAKS = re.compile(r"\r\n?|\f")
_LOADING = re.compile(r"(?:-[a-z]+-)?(?:image-set|image|cross-fade|element|paint)|src|url-prefix")
_PICTURED = frozenset(
    {"background", "background-image", "list-style", "list-style-image", "border-image"}
    | {"border-image-source", "content"}
)  # properties that take a picture

# One pixel that is clear: a browser shows it, and no sign that a picture is broken.
_NOTHING = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


def placed(
    markup: str, part: Place, remote: Callable[[str], bool], *, loaded: bool
) -> tuple[str, int]:
    """Return `markup` with nothing that loads but its pictures, and how many of them are remote.

    `part` is asked for the Content-ID of each picture in the message, `remote` for the URL of each
    that is elsewhere: whether it may be loaded at all.  `loaded`: those are; else they have no
    place, as a part has none for which there is no address.
    """
    found = _Placing(part, remote, loaded)
    return found.page(markup), len(found.elsewhere)


class _Placing:
    def __init__(self, part: Place, remote: Callable[[str], bool], loaded: bool) -> None:
        self._part, self._remote, self._loaded = part, remote, loaded
        self._left = MOST_PLACED
        self._parts: dict[str, str | None] = {}
        self._refused: set[str] = set()
        self.elsewhere: dict[str, str | None] = {}

    def page(self, markup: str) -> str:
        doctype = _DOCTYPE.match(markup)
        position = doctype.end() if doctype else 0
        made = [markup[:position]]
        while position >= 0 and (at := markup.find("<", position)) >= 0:
            made.append(markup[position:at])
            position = self._markup(made, markup, at)
        if position >= 0:
            made.append(markup[position:])
        return "".join(made)

    def _markup(self, made: list[str], markup: str, at: int) -> int:
        """Write what begins with the "<" at `at`; where it ends, -1 where the page does."""
        if markup.startswith("<!--", at):
            end = markup.find("-->", at + 2)
            return end + 3 if end >= 0 else -1
        name = _NAME.match(markup, at + 1)
        if name is None:
            if markup[at + 1 : at + 2] in ("!", "?", "/"):  # what browsers take for a comment
                return markup.find(">", at) + 1 or -1
            made.append("&lt;")
            return at + 1
        attributes: dict[str, str | None] = {}
        end, alone = _attributes(markup, name.end(), attributes)
        if end < 0:
            return -1
        tag = name[1].lower()
        if markup[at + 1] == "/":
            if tag not in _GONE and _PLAIN.fullmatch(tag):
                made.append(f"</{_renamed(tag)}>")
            return end
        if tag not in _GONE and _PLAIN.fullmatch(tag):
            self._tag(made, tag, attributes)
            made.append("/>" if alone and tag not in _RAW else ">")
        elif tag == "meta" and _said(attributes, "name") == "color-scheme":
            schemes = " ".join(_SCHEME.findall(_said(attributes, "content")))
            made.append(f'<meta name="color-scheme" content="{schemes}">')
        if tag not in _RAW:
            return end
        close = _closing(markup, tag, end)
        if tag == "style":
            made.append(self._css(markup[end:close]))
        elif tag not in _GONE:
            made.append(markup[end:close].replace("<", "&lt;"))
        return close

    def _tag(self, made: list[str], tag: str, attributes: dict[str, str | None]) -> None:
        made.append(f"<{_renamed(tag)}")
        pictured = tag in ("img", "image") or (
            tag == "input" and _said(attributes, "type") == "image"
        )
        for name, value in attributes.items():
            if value is None or value in ('""', "''"):
                if not _UNKEPT.fullmatch(name):
                    made.append(f" {name}" if value is None else f' {name}=""')
                continue
            quote = value[0] if value[0] in "\"'" else ""
            raw = value[1:-1] if quote else value
            if name == "style" and _CSS_REACHES.search(raw):
                made.append(f' style="{html.escape(self._css(unescape(raw)))}"')
            elif (name == "src" and pictured) or (name == "background" and tag in _CELLS):
                self._picture(made, name, unescape(raw))
            elif name == "srcset" and tag == "img":
                first = None if "src" in attributes else _CANDIDATE.match(unescape(raw))
                if first:
                    self._picture(made, "src", first[1])
            elif name == "srcset" and tag == "source":
                first = _CANDIDATE.match(unescape(raw))
                if first and "prefers-color-scheme" in _said(attributes, "media"):
                    self._picture(made, "srcset", first[1])
            elif name == "style" or self._kept(tag, name, raw):
                mark = quote or '"'
                text = raw if quote else raw.replace('"', "&quot;")
                made.append(f" {name}={mark}{text}{mark}")

    def _picture(self, made: list[str], name: str, url: str) -> None:
        wanted = self._one(url)
        if wanted:
            made.append(f' {name}="{html.escape(wanted)}"')
        elif wanted is None:  # marked, so that a style may show its place
            shown = name == "src" and self._left > 0
            made.append(" data-blocked" + (f' src="{_NOTHING}"' if shown else ""))

    def _kept(self, tag: str, name: str, raw: str) -> bool:
        """Whether an attribute that is no picture stays: it asks for nothing."""
        if name in ("href", "xlink:href"):
            return tag in ("a", "area") or raw.startswith("#")
        if _UNKEPT.fullmatch(name):
            return False
        if name in _TEXTS or name.startswith(("data-", "aria-")):
            return True
        text = unescape(raw)
        return not _REACHES.search(text) and (
            "(" not in text or self._css(text, alone=True) == text
        )

    def _one(self, url: str) -> str | None:
        """The address of a picture: None where it has no place, "" where it is none."""
        wanted = _BREAKS.sub("", url.strip(_ENDS))
        if wanted[:4].lower() == "cid:":
            return self._place(unquote(wanted[4:]), self._parts, self._part)
        if wanted[:5].lower() == "data:":
            return wanted
        if wanted in self._refused or not _REMOTE.fullmatch(wanted):
            return ""
        if wanted not in self.elsewhere and not self._remote(wanted):
            self._refused.add(wanted)
            return ""
        return self._place(wanted, self.elsewhere, lambda url: url if self._loaded else None)

    def _place(self, wanted: str, known: dict[str, str | None], place: Place) -> str | None:
        self._left -= 1
        if wanted not in known:
            room = len(known) < MOST and self._left >= 0
            known[wanted] = place(wanted) if room else None
        return known[wanted] if self._left >= 0 else None

    def _css(self, text: str, *, alone: bool = False) -> str:
        """A style without anything that loads but pictures; `alone`: without these, too."""
        if not _CSS_REACHES.search(text):
            return text
        text = _CSS_BREAKS.sub("\n", text).replace("\0", "\ufffd")
        made: list[str] = []
        position = parens = skipped = 0
        name = of = ""  # the last name, and the property whose value this is
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                break  # there is none such: the last of them matches anything
            position = token.end()
            comment, string, word, mark, other = token.groups()
            if word is not None:
                said = _css_text(word).lower()
                if said == "url(":
                    rest = _URL_REST.match(text, position)
                    position = (rest or _BAD_URL.match(text, position)).end()  # type: ignore[union-attr]  # the latter always matches
                    if not skipped:
                        wanted = "" if rest is None else _css_text(rest[rest.lastindex or 3])
                        pictured = of in _PICTURED and not parens and not alone
                        made.append(self._css_url(wanted, pictured))
                elif said.endswith("(") and (skipped or _LOADING.fullmatch(said[:-1])):
                    if not skipped:
                        made.append("none")
                    skipped += 1
                elif not skipped:
                    parens += said.endswith("(")
                    name = said
                    # Escaped, too: in SVG a style is read as markup first.
                    kept = word.replace("\\<", "\\3c ").replace("\\&", "\\26 ")
                    made.append("@x-import" if said == "@import" else kept)
            elif skipped:
                skipped += (mark == "(") - (mark == ")")
            elif mark is not None:
                if mark == ":":
                    of = of or name
                elif mark in "{};":
                    of, parens = "", 0
                else:
                    parens = max(0, parens + (1 if mark == "(" else -1))
                made.append(mark)
            elif comment is not None:
                made.append(" ")
            else:
                made.append((string or other).replace("<", " ").replace("&", " "))
            if mark is not None and mark in "{};" and not skipped:
                name = ""
        return "".join(made)

    def _css_url(self, url: str, pictured: bool) -> str:
        if _FRAGMENT.fullmatch(url):
            return f"url({url})"
        wanted = self._one(url) if pictured else None
        if not wanted:
            return "none"
        secret = _UNTOLD if _REMOTE.fullmatch(wanted) else ""
        return f'url("{_CSS_UNSAFE.sub(_css_escaped, wanted)}"{secret})'


# Chromium fetches what a style names with the default policy, whatever the page's is.
_UNTOLD = " referrer-policy(no-referrer)"
_FRAGMENT = re.compile(r"#[\w.-]+")
_CSS_UNSAFE = re.compile(r'["\\<&\n\0]')


def _css_escaped(match: re.Match[str]) -> str:
    return f"\\{ord(match[0]):x} "


def _css_text(written: str) -> str:
    """What is said with CSS's escapes."""
    if "\\" not in written:
        return written

    def one(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[3] or ""
        code = int(match[1], 16)
        return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"

    return _CSS_ESCAPE.sub(one, written)


def _renamed(tag: str) -> str:
    if tag == "xmp":
        return "pre"
    return f"x-{tag}" if tag in _RENAMED else tag


def _attributes(markup: str, position: int, found: dict[str, str | None]) -> tuple[int, bool]:
    """Where the tag ends whose attributes begin at `position`, -1: nowhere; and whether it is
    closed at once, as it may be in SVG.  The first of a name counts, as written."""
    while True:
        end = _TAG_END.match(markup, position)
        if end is not None:
            return end.end(), end[0].endswith("/>")
        attribute = _ATTRIBUTE.match(markup, position)
        if attribute is None or attribute.end() == position:
            return -1, False
        position = attribute.end()
        name = attribute[1].lower()
        if _PLAIN.fullmatch(name):
            found.setdefault(name, attribute[2])


def _said(attributes: dict[str, str | None], name: str) -> str:
    """The value of an attribute, as far as words go."""
    return (attributes.get(name) or "").strip("\"'").lower()


def _closing(markup: str, tag: str, position: int) -> int:
    """Where the end tag of a raw text begins; the end of all if there is none."""
    match = re.compile(rf"</{re.escape(tag)}(?=[\t\n\f\r />])", re.IGNORECASE).search(
        markup, position
    )
    return len(markup) if match is None else match.start()
