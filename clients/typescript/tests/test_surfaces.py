"""The two clients have the same names: what one can, the other can, but for what is listed here.

Python's are asked of the package itself, TypeScript's of its declarations (surface.mjs).  Names are
compared as Python writes them, parameters without regard to what is an option and what is not.
`AsyncRelay` and its like have what `Relay` has, which Python's own tests see to.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from typing import Any

import pytest
import relay_client
from conftest import HERE, Run

Members = dict[str, "list[str] | None"]
"""By its name what a member takes; None where it is no call."""

RENAMED = {"VERSION": "__version__", "MessageHeaders": "Headers"}
"""As each language calls such things: a constant of a module; what DOM's `Headers` would hide."""

ONLY_TYPESCRIPT = {
    "RelayOptions": "parameters of `Relay`, and `fetch`: unlike httpx, Node.js's own knows no proxy"
    " and no authority of the environment",
    "InboxOptions": "parameters of `Relay.inbox`",
    "ListOptions": "parameters of `Inbox.messages` and `search`",
    "WaitOptions": "parameters of `Inbox.wait` and `wait_many`",
    "Wanted": "parameters of `Inbox.wait_none`",
    "NewMessage": "parameters of `Relay.send`",
    "AttachmentData": "what Cypress's commands give; in Python nobody is given one",
    "MessageData": "likewise",
    "components": "types of the HTTP API, for calls of one's own",
    "operations": "likewise",
    "paths": "likewise",
}
ONLY_PYTHON = {
    **{
        f"Async{name}": "in TypeScript all is asynchronous"
        for name in ("Attachment", "Inbox", "Message", "Outbound", "Relay")
    },
    "AsyncInboxContext": "what makes `async with relay.inbox()` and `await relay.inbox()` one",
}

MEMBERS_ONLY_TYPESCRIPT = {
    ("*", "name"): "of a JavaScript error; Python has its class",
    ("*", "to_string"): "`str(…)`",
    ("*", "to_json"): "`dict(…)`",
    ("Headers", "get"): "of Python's `Mapping`",
    ("Headers", "has"): "`in`",
    ("NewAttachment", "*"): "in Python a path, or a tuple",
}
PARAMETERS = {
    ("Relay", "send", "from_"): ("from", "a keyword of Python"),
    ("Relay", "outbound", "message_id"): ("id", "a built-in of Python"),
    ("Inbox", "wait_none", "seconds"): ("milliseconds", "times are what each language counts in"),
}


def _snake(name: str) -> str:
    return name if name.isupper() else re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


@pytest.fixture(scope="module")
def typescript(run: Run) -> dict[str, Members]:
    """Return what the package declares, by Python's names."""
    found = json.loads(run("node", HERE / "tests/surface.mjs", HERE / "src/index.ts").stdout)
    return {
        RENAMED.get(name, name): {
            _snake(member): None if takes is None else sorted(map(_snake, takes))
            for member, takes in members.items()
        }
        for name, members in found.items()
    }


def _members(of: Any) -> Members:
    """What there is of a class: what it defines, and what its objects have as they are made."""
    found: Members = {}
    if not inspect.isclass(of):
        return found
    for one in reversed(of.__mro__):
        if not one.__module__.startswith("relay_client"):
            continue
        for name in one.__annotations__ if "__annotations__" in vars(one) else ():
            found[name] = None
        for name, value in vars(one).items():
            if callable(value) or isinstance(value, property):
                takes = None
                if not isinstance(value, property):
                    takes = [name for name in inspect.signature(value).parameters if name != "self"]
                found[name] = takes
        if "__init__" in vars(one) and not hasattr(one, "__dataclass_fields__"):
            tree = ast.parse(textwrap.dedent(inspect.getsource(vars(one)["__init__"])))
            for node in ast.walk(tree):
                match node:
                    case ast.Attribute(value=ast.Name("self"), ctx=ast.Store()):
                        found[node.attr] = None
    return {name: takes for name, takes in found.items() if not name.startswith("_")}


def _python() -> dict[str, Members]:
    surface: dict[str, Members] = {}
    for name in relay_client.__all__:
        members = _members(getattr(relay_client, name))
        for member, takes in members.items():
            if takes is not None:
                said = [PARAMETERS.get((name, member, one), (one, ""))[0] for one in takes]
                members[member] = sorted(said)
        surface[name] = members
    return surface


def test_what_one_client_exports_the_other_does(typescript: dict[str, Members]) -> None:
    """But for the names above, each of which is one that there is."""
    python = set(_python())
    assert set(typescript) - python == set(ONLY_TYPESCRIPT)
    assert python - set(typescript) == set(ONLY_PYTHON)
    takes = set(inspect.signature(relay_client.Relay).parameters)
    assert set(typescript["RelayOptions"]) == takes | {"fetch"}


def test_what_an_object_of_one_client_has_that_of_the_other_has(
    typescript: dict[str, Members],
) -> None:
    """By the same names, and its calls take the same."""

    def allowed(name: str, member: str) -> bool:
        ways = {("*", member), (name, member), (name, "*")} & MEMBERS_ONLY_TYPESCRIPT.keys()
        used.update(ways)
        return bool(ways)

    used: set[tuple[str, str]] = set()
    differ = []
    for name, members in _python().items():
        other = typescript.get(name)
        if other is None:
            continue
        for member in sorted(members.keys() | other.keys()):
            if member not in members:
                if not allowed(name, member):
                    differ.append(f"{name}.{member}: only in TypeScript")
            elif member not in other:
                differ.append(f"{name}.{member}: only in Python")
            elif members[member] != other[member]:
                differ.append(f"{name}.{member}: {members[member]} and {other[member]}")
    assert differ == []
    assert used == set(MEMBERS_ONLY_TYPESCRIPT)
