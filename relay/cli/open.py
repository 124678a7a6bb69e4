"""`relay open`: the operator's page, signed in; and what `relay up` says on a terminal.

The link holds a code that the relay exchanges once for a page session, within a minute.  The code
stands behind the `#`, which browsers send to no server and name to no other page; and a browser is
started with the name of a file of ours (mode 0600) that leads there, since every user of the
machine can read the arguments of a process.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from relay.cli import options, output
from relay.cli.client import Api
from relay.cli.exits import Failure
from relay.datadir import DataDir
from relay.ip import is_loopback

LASTS = 60.0
"""Seconds that the link of `relay open` may be used."""

BANNER_LASTS = 600.0
"""Seconds that the link of the banner may be used."""

_PAGE = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={url}">
<title>Relay</title>
<a href="{url}">Relay</a>
"""


@click.command(name="open")
@click.option("--print", "only_print", is_flag=True, help="Print the link instead of opening it.")
@options.data_dir
def open_(only_print: bool, data_dir: Path) -> None:
    """Open the operator's page in a browser, signed in by a one-time link."""
    url = sign_in_link(data_dir, LASTS)
    if only_print or not _has_browser():
        output.say(url)
        the = "The" if only_print else "No browser here; the"
        output.note(f"relay: {the} link works once, within {LASTS:.0f} s.")
        return
    import webbrowser

    if not webbrowser.open(_leading_to(url, DataDir(data_dir)).as_uri()):
        output.say(url)
        output.note(f"relay: No browser was started; the link works once, within {LASTS:.0f} s.")


def sign_in_link(data_dir: Path, lasts: float) -> str:
    """Return a link that signs a browser in as the administrator, once, within `lasts` seconds."""
    api = Api.find(data_dir)
    answer = api.call("POST", "/api/v1/session/links", json={"lasts": lasts})
    return str(answer.json()["url"])


def banner(entries: Mapping[str, Any], data_dir: Path) -> str:
    """Return what a person wants to know of a relay that is ready; `entries`: its `relay.json`."""
    relay = sys.argv[0] if Path(sys.argv[0]).name in {"relay", "relay-mail"} else "relay"
    # Another shell knows neither this one's variables nor its options.
    where = options.naming(data_dir)

    def command(*words: str) -> str:
        return shlex.join([relay, *words, *where])

    lines: list[tuple[str, str]] = []
    if "smtp" in entries:
        lines.append(("mail", f"{entries['smtp']} (SMTP)"))
        if _captures(data_dir):
            lines.append(("", "any address is captured, and nothing leaves from here;"))
            lines.append(("", "any user and password will do, the user name becomes a tag"))
        elif _is_off_for_a_proxy(entries):
            lines.append(("", "mail for other domains is refused: behind the proxies that are"))
            lines.append(("", "trusted may be anybody (RELAY_SMTP__CAPTURE=on takes it)"))
    if "lmtp" in entries:
        lines.append(("", f"{entries['lmtp']} (LMTP, from a mail server in front)"))
    if "submission" in entries:
        lines.append(("send", f"{entries['submission']} (SMTP, a key as the password)"))
        lines.append(("", command("key", "create", "--owner", "me", "--scope", "send")))
    if "submission_tls" in entries:
        lines.append(("send", f"{entries['submission_tls']} (likewise, with TLS)"))
    if "pop3" in entries:
        lines.append(("fetch", f"{entries['pop3']} (POP3, an address and its token)"))
    if "pop3_tls" in entries:
        lines.append(("fetch", f"{entries['pop3_tls']} (likewise, with TLS)"))
    if "devices_push" in entries:
        lines.append(
            ("devices", f"push {entries['devices_push']}, receive {entries['devices_receive']}")
        )
    if "http" in entries:
        lines.append(("API", f"{entries['http']}/docs"))
        try:
            link = sign_in_link(data_dir, BANNER_LASTS)
        except Failure:
            lines.append(("page", str(entries["http"])))
        else:
            lines.append(("page", link))
            lines.append(("", f"signs you in once, within {BANNER_LASTS / 60:.0f} minutes"))
        lines.append(("later", command("open")))
        lines.append(("try", command("messages", "list")))
        lines.append(("", command("mailbox", "create")))
    shown = "".join(f"  {name:<9}{text}\n" for name, text in lines)
    return f"\nRelay is ready.\n\n{shown}\n"


def _captures(data_dir: Path) -> bool:
    """Whether the relay keeps mail for any domain."""
    try:
        return bool(Api.find(data_dir).get("/api/v1/info")["capture"])
    except Failure:
        return False  # it serves no HTTP, or is on its way out


def _is_off_for_a_proxy(entries: Mapping[str, Any]) -> bool:
    """Whether such mail would be kept if there were no `RELAY_SMTP__TRUSTED_PROXIES`."""
    from relay.settings import parse_endpoint

    chosen = entries.get("settings", {})
    return (
        bool(chosen.get("smtp.trusted_proxies"))
        and chosen.get("smtp.capture", "auto") == "auto"
        and all(is_loopback(parse_endpoint(one)[0]) for one in entries["bound"]["smtp"])
    )


def _has_browser() -> bool:
    """Whether there is a screen for one; a browser in the terminal would not run the page."""
    return sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    )


def _leading_to(url: str, data: DataDir) -> Path:
    """Write the file that leads a browser to `url`, for this user alone."""
    import html

    file = data.run_file.with_name("open.html")
    try:
        file.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(file, flags, 0o600), "w") as out:
            out.write(_PAGE.format(url=html.escape(url)))
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror}.") from error
    return file
