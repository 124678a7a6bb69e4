"""What a piece of HTML is made of: elements, attributes, images, and the CSS that it brings.

A list of what is there, not a tree: whoever asks which clients ignore a thing has to know that it
is there, and no more.

Promises: it never raises, whatever the text is, and takes time linear in it: every pattern begins
where the last one ended, and what is not closed reaches to the end, as browsers have it.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z][^\s/>]*")
# One attribute, or (third branch) a character that belongs to none.
_ATTRIBUTE = re.compile(
    r"""[\s/]*+(?:([^\s=>/]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"'][^\s>]*+)))?|=)"""
)
_RAW = {"style", "script", "title", "textarea", "xmp"}  # noscript is read: no reader runs scripts
_ENDS = {name: re.compile(rf"</{name}[\s/>]", re.IGNORECASE) for name in _RAW}

_RULE = re.compile(r"[^{};]++[{};]?")
_AT = re.compile(r"\s*@([a-z-]+)", re.IGNORECASE)
_PSEUDO = re.compile(r"::?([a-z][a-z-]*)", re.IGNORECASE)
_FUNCTION = re.compile(r"(?<![\w-])([a-z][a-z-]*+)\(", re.IGNORECASE)
_UNIT = re.compile(r"(?<![\w#.])[0-9.]{1,20}([a-z]{1,5})(?![\w-])", re.IGNORECASE)
_URL = re.compile(r"url\([^)]*+\)?", re.IGNORECASE)
_PICTURES = ("background", "list-style", "border-image", "mask", "content", "cursor")
_HIDDEN = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_IMAGE = re.compile(r"[^?#]*\.([a-z0-9]{2,5})(?:[?#]|\Z)", re.IGNORECASE)

_MOST = 500  # different names of a kind


@dataclass
class Markup:
    """Counts and names, in small letters."""

    marks: set[str] = field(default_factory=set)
    """`kind:name`, as `support.json` has them: element, attribute, property, declaration, rule,
    pseudo, function, unit, image."""
    images: int = 0
    """Those to be seen: what counts readers, a pixel large, is none."""
    without_alt: int = 0
    remote: int = 0
    """Images that a reader has to fetch, those that count readers among them."""
    styles: dict[str, int] = field(default_factory=dict)
    """Style attributes read so far, each with its remote images: most are there many times."""

    def add(self, kind: str, name: str) -> None:
        """Note a name; what is too long is none, and very many are more than anybody reads."""
        if len(name) <= 60 and len(self.marks) < 10 * _MOST:
            self.marks.add(f"{kind}:{name.lower()}")


def read(html: str) -> Markup:
    """Read HTML."""
    markup = Markup()
    position = 0
    while (start := html.find("<", position)) >= 0:
        if html.startswith("<!--", start):
            end = html.find("-->", start + 4)
            position = len(html) if end < 0 else end + 3
            continue
        match = _NAME.match(html, start + 1)
        if match is None:
            position = start + 1
            continue
        name = match[0].lower()
        attributes, position = _attributes(html, match.end())
        _element(markup, name, attributes)
        if name in _RAW:
            end_tag = _ENDS[name].search(html, position)
            end = end_tag.start() if end_tag else len(html)
            if name == "style":
                _css(markup, html[position:end])
            position = end
    return markup


def _attributes(html: str, position: int) -> tuple[dict[str, str], int]:
    """The attributes of a tag, of those that are there twice the first, and where it ends."""
    found: dict[str, str] = {}
    while match := _ATTRIBUTE.match(html, position):
        position = match.end()
        if match[1] is not None:
            value = match[2] or match[3] or match[4] or ""
            found.setdefault(match[1].lower(), value)
    end = html.find(">", position, position + 1000)
    return found, end + 1 if end >= 0 else position


def _element(markup: Markup, name: str, attributes: dict[str, str]) -> None:
    if name != "link" or "stylesheet" in attributes.get("rel", "").lower():
        markup.add("element", name)
    for attribute, value in attributes.items():
        if attribute != "target" or value.lower() != "_blank":  # all readers open links so
            markup.add("attribute", attribute)
    if style := attributes.get("style"):
        if style not in markup.styles:
            before = markup.remote
            _declarations(markup, style)
            markup.styles[style] = markup.remote - before
        else:
            markup.remote += markup.styles[style]
    if name == "img":
        source = attributes.get("src", "").strip()
        if not _counts_readers(attributes):
            markup.images += 1
            markup.without_alt += "alt" not in attributes
        markup.remote += _is_remote(source)
        _image(markup, source)
    if (background := attributes.get("background", "").strip()) and _is_remote(background):
        markup.remote += 1


def _counts_readers(attributes: dict[str, str]) -> bool:
    """Whether an image is there to be fetched, and not to be seen."""
    sizes = (attributes.get(name, "").strip().removesuffix("px") for name in ("width", "height"))
    return all(size in {"0", "1"} for size in sizes) or bool(
        _HIDDEN.search(attributes.get("style", ""))
    )


def _is_remote(source: str) -> bool:
    return source[:8].lower().startswith(("http://", "https://", "//"))


def _image(markup: Markup, source: str) -> None:
    if source[:5].lower() == "data:":
        markup.add("image", "data")
        if source[:14].lower() == "data:image/svg":
            markup.add("image", "svg")
    elif match := _IMAGE.match(source[-200:]):
        markup.add("image", match[1])


def _css(markup: Markup, sheet: str) -> None:
    depth = 0
    for text in _RULE.findall(_without_comments(sheet)):
        if text.endswith("{"):
            if match := _AT.match(text):
                markup.add("rule", match[1])
            else:
                for pseudo in _PSEUDO.findall(text):
                    markup.add("pseudo", pseudo)
            depth += 1
        elif match := _AT.match(text):
            markup.add("rule", match[1])
        else:
            _declaration(markup, text.rstrip(";}"))


def _without_comments(sheet: str) -> str:
    if "/*" not in sheet:
        return sheet
    first, *rest = sheet.split("/*")
    return " ".join([first, *(part.partition("*/")[2] for part in rest)])


def _declarations(markup: Markup, style: str) -> None:
    for declaration in _without_comments(style).split(";"):
        _declaration(markup, declaration)


def _declaration(markup: Markup, text: str) -> None:
    name, colon, value = text.partition(":")
    if not colon:
        return
    name, value = name.strip(), value.strip()
    markup.add("property", name)
    markup.add("declaration", f"{name}:{value.split('!')[0].strip()}")
    said = _URL.sub(" ", value)  # an address has neither functions nor units
    for function in _functions(said):
        markup.add("function", function)
    for unit in _UNIT.findall(said):
        markup.add("unit", unit)
    if said != value and name.lower().startswith(_PICTURES):
        address = value.lower().partition("url(")[2].strip(" \t\r\n'\"")
        markup.remote += _is_remote(address)


def _functions(value: str) -> Iterator[str]:
    if "(" in value:
        yield from _FUNCTION.findall(value)
