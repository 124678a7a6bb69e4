"""Makes `relay/checks/support.json` of the data of caniemail.com, as npm has it.

    npm pack caniemail
    python -m tests.checks.support caniemail-1.0.5.tgz

Of each feature that can be found in a message without laying it out it keeps who ignores it: the
clients whose newest tested version does, of Outlook, Gmail and Apple Mail.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CHECKS = HERE.parent.parent / "relay" / "checks"

CLIENTS = {
    ("outlook", "windows"): "Outlook for Windows",
    ("outlook", "macos"): "Outlook for Mac",
    ("outlook", "outlook-com"): "Outlook.com",
    ("outlook", "ios"): "Outlook for iOS",
    ("outlook", "android"): "Outlook for Android",
    ("gmail", "desktop-webmail"): "Gmail",
    ("gmail", "mobile-webmail"): "Gmail on the mobile web",
    ("gmail", "ios"): "Gmail for iOS",
    ("gmail", "android"): "Gmail for Android",
    ("apple-mail", "macos"): "Apple Mail",
    ("apple-mail", "ios"): "Apple Mail on iOS",
}

_GRID = ("areas", "columns", "rows")
_SECTIONS = ("article", "aside", "figure", "footer", "header", "main", "nav")

# What a slug does not spell itself: the things in a message that it stands for.
SPELT = {
    "css-left-right-top-bottom": ["property:left", "property:right", "property:top"],
    "css-grid-template": [f"property:grid-template-{what}" for what in _GRID],
    "css-column-layout-properties": ["property:columns", "property:column-gap"],
    "css-block-inline-size": ["property:block-size"],
    "css-border-inline-block": ["property:border-inline", "property:border-block"],
    "css-margin-inline-block": ["property:margin-inline", "property:margin-block"],
    "css-margin-inline-start-end": ["property:margin-inline-start", "property:margin-inline-end"],
    "css-padding-inline-block": ["property:padding-inline", "property:padding-block"],
    "css-display-flex": ["declaration:display:flex", "declaration:display:inline-flex"],
    "css-display-grid": ["declaration:display:grid", "declaration:display:inline-grid"],
    "css-display-none": ["declaration:display:none"],
    "css-variables": ["function:var"],
    "css-linear-gradient": ["function:linear-gradient"],
    "css-radial-gradient": ["function:radial-gradient"],
    "css-conic-gradient": ["function:conic-gradient"],
    "css-unit-calc": ["function:calc"],
    "css-scroll-snap": ["property:scroll-snap-type", "property:scroll-snap-align"],
    "html-image-maps": ["element:map", "element:area"],
    "html-input-text": ["element:input"],
    "html-button-submit": ["element:button"],
    "html-semantics": [f"element:{name}" for name in _SECTIONS],
    "html-loading-attribute": ["attribute:loading"],
    "html-srcset": ["attribute:srcset"],
    "html-popover": ["attribute:popover"],
    "image-base64": ["image:data"],
    "image-jpg": ["image:jpg", "image:jpeg"],
    "image-heif": ["image:heif", "image:heic"],
    "image-tiff": ["image:tif", "image:tiff"],
}
# No one thing that can be looked for, or nothing that anybody would miss.
_SILENT = (
    *("css-selector-", "css-at-media-", "html-input-", "html-button-", "css-comments", "css-rgb"),
    *("css-important", "css-nesting", "css-modern-color", "css-sytem-ui", "css-intrinsic-size"),
    *("css-unit-initial", "css-unit-px", "css-unit-percent", "css-border-inline-block-"),
    *("css-margin-block-start-end", "css-padding-block-start-end", "css-padding-inline-start-end"),
    *("css-border-radius-logical", "html-anchor-links", "html-mailto-links", "html-lists"),
    *("html-h1-h6", "html-comments", "html-doctype", "html-body", "html-meta-color-scheme"),
    *("image-mp4",),
)


def marks(feature: dict[str, Any]) -> list[str]:
    """What to look for: `kind:name`."""
    slug: str = feature["slug"]
    category, _, name = slug.partition("-")
    if slug in SPELT:
        return SPELT[slug]
    if slug.startswith(_SILENT) or category not in {"css", "html", "image"}:
        return []
    for prefix, kind in (
        ("css-at-", "rule"),
        ("css-pseudo-class-", "pseudo"),
        ("css-pseudo-element-", "pseudo"),
        ("css-function-", "function"),
        ("css-unit-", "unit"),
    ):
        if slug.startswith(prefix):
            return [f"{kind}:{slug.removeprefix(prefix)}"]
    if category == "html":
        kind = "attribute" if feature["title"].endswith("attribute") else "element"
        return [f"{kind}:{name}"]
    return [f"{'property' if category == 'css' else 'image'}:{name}"]


def ignored_by(feature: dict[str, Any]) -> list[str]:
    """The clients whose newest tested version knows nothing of a feature."""
    found = []
    for (family, platform), label in CLIENTS.items():
        versions = feature["stats"].get(family, {}).get(platform, {})
        if versions and list(versions.values())[-1].split()[0] == "n":
            found.append(label)
    return found


def reduced(data: dict[str, Any], version: str) -> dict[str, Any]:
    """The small form: labels of clients, and by mark the slug, the title and who ignores it."""
    labels = list(CLIENTS.values())
    features: dict[str, Any] = {}
    for feature in data["data"]:
        if who := ignored_by(feature):
            for mark in marks(feature):
                numbers = [labels.index(label) for label in who]
                features[mark] = [feature["slug"], feature["title"], numbers]
    return {
        "source": f"caniemail.com, by npm caniemail {version}; licence: support.LICENSE",
        "updated": data["last_update_date"],
        "clients": labels,
        "features": dict(sorted(features.items())),
    }


def main() -> None:
    with tarfile.open(sys.argv[1]) as archive:

        def member(name: str) -> bytes:
            file = archive.extractfile(f"package/{name}")
            assert file is not None
            return file.read()

        version = json.loads(member("package.json"))["version"]
        made = reduced(json.loads(member("data/caniemail.json")), version)
        licence = member("LICENSE")
    lines = [
        f" {json.dumps(mark)}: {json.dumps(value)}" for mark, value in made["features"].items()
    ]
    head = json.dumps({**made, "features": 0}, indent=1).removesuffix("0\n}")
    (CHECKS / "support.json").write_text(head + "{\n" + ",\n".join(lines) + "\n}\n}\n")
    (CHECKS / "support.LICENSE").write_bytes(licence.strip() + b"\n")


if __name__ == "__main__":
    main()
