"""What the relay says when it refuses a call, read from its source: every sentence that a `Problem`
may have, as keys of a language's table.

A page in another language says them by that table (`relay/http/ui/spoken.js`): an answer itself
stays English, and its sentence is the key.  `is_known` takes an answer apart as spoken.js does: at
its semicolons, and behind the names that it is about.

How: a sentence is a literal that is given to `Problem` or to what makes one, or to an exception
whose text becomes one; and each fault that pydantic may find in the models of the calls.  What is
put into a literal is a place, `{0}`; a full stop at the end is left out, as spoken.js does.

Fails: `refusals` with AssertionError where a handler words an exception that is not in `WORDED`, or
where a model has a kind of value that is not in `FAULTS`: its sentences would be missed.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticKnownError

import relay
from relay.http import resources
from relay.http.operations import Form, Query
from relay.http.problems import details as problem_details
from relay.http.problems.details import invalid
from relay.http.resources.outbound import VERBS
from relay.outbound.queue.states import State

ROOT = Path(relay.__file__).parent

PROGRAMS = {
    "http/compat",
    "http/probes/fetch.py",
    "mailboxes/mails.py",
    "outbound/submission/submitted.py",
}
"""What only programs are told: clients of Mailpit and MailHog, and of SMTP."""
MAKERS = {"unauthenticated", "unavailable", "over_quota"}
"""What makes a `Problem` of its first argument."""


def _same(text: str) -> str:
    return text


def _capital(text: str) -> str:
    return text.capitalize()


def _it(text: str) -> str:
    return f"it {text}"


WORDED: dict[str, Callable[[str], str]] = {
    "BadUrl": _it, "Forbidden": _capital, "ForgedNotification": _same, "Invalid": _same,
    "MalformedMessage": _it, "MalformedNotification": _same, "MalformedReport": _same,
    "NotNow": _same, "NotParsed": _capital, "OverQuota": _capital, "UnfitMail": _same,
}  # fmt: skip
"""The exceptions whose text is said, and how a handler words it."""
ELSEWHERE = {
    "PermanentFailure",  # of which only MalformedMessage and UnfitMail come to that handler
    "Refused",  # of a device's blob: its reason chooses a sentence of `_TEMPORARY`
    "Short",  # of a device's blob: `_problem` words it, in a `Problem`
    "Taken",  # its field is said, and not its text
    "TemporaryFailure",  # why a check failed: strings.de.checks.js has it
    "TooManyMails",  # SQL's, which `_of_accounts` reads
    "ValidationError",  # `_of_models`
    "WrongStatus",  # SQL's
}
"""What handlers word beside them."""

_PARTS = (
    "default", "definition-ref", "definitions", "function-after", "function-before", "model-field",
    "no-info", "nullable", "union",
)  # fmt: skip
FAULTS: dict[str, set[str]] = {
    "bool": {"bool_type", "bool_parsing"},
    "datetime": {"datetime_type", "datetime_parsing", "datetime_from_date_parsing"},
    "dict": {"dict_type"},
    "enum": {"enum"},
    "float": {"float_type", "float_parsing"},
    "int": {"int_type", "int_parsing", "int_parsing_size", "int_from_float"},
    "literal": {"literal_error"},
    "model": {"model_type"},
    "model-fields": {"missing", "extra_forbidden"},
    "str": {"string_type", "string_unicode"},
    "tuple": {"tuple_type"},
    "uuid": {"uuid_type", "uuid_parsing"},
    **{kind: set() for kind in _PARTS},  # what these refuse is a ValueError's, or their parts'
}  # fmt: skip
"""What each kind of value may be refused for, by pydantic's names."""
BOUNDS = {
    ("dict", "max_length"): "too_long", ("tuple", "max_length"): "too_long",
    ("tuple", "min_length"): "too_short", ("str", "max_length"): "string_too_long",
    ("str", "min_length"): "string_too_short", ("str", "pattern"): "string_pattern_mismatch",
    **{
        (kind, name): fault
        for kind in ("int", "float")
        for name, fault in {
            "ge": "greater_than_equal", "gt": "greater_than", "le": "less_than_equal",
            "lt": "less_than",
        }.items()
    },
    ("float", "allow_inf_nan"): "finite_number", ("datetime", "tz_constraint"): "timezone_aware",
}  # fmt: skip
NO_BOUND = {
    "choices", "cls", "computed_fields", "config", "custom_init", "default", "definitions",
    "expected", "function", "items_schema", "keys_schema", "members", "microseconds_precision",
    "model_name", "root_model", "schema_ref", "serialization_alias", "strict", "sub_type",
    "validation_alias", "values_schema", "variadic_item_index",
    "fields", "metadata", "ref", "schema", "serialization", "type",
}  # fmt: skip
"""Of pydantic's schemas, what refuses nothing by itself."""
NOT_SAID = re.compile(
    r"Bearer realm|Value error, |, or 'Basic'|(.*[: ])?it \{\d\}$|the domain \{0\}$"
    r"|there is no such field\{0\}$"
)
"""Literals for programs, and those that have nothing to translate: their places have it all."""


def keyed(text: str) -> str:
    """A sentence as the key of a table: its places counted, without its full stop."""
    count = itertools.count()
    text = re.sub(r"^\{[^{}]*\}: ", "", text)  # a field's name, which is kept
    text = re.sub(r"\{[^{}]*\}", lambda _: f"{{{next(count)}}}", text)
    return text.removesuffix(".")


def _spelt(node: ast.AST) -> Iterator[str]:
    """Each literal within a node, whole, with places for what is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(one.value)
            if isinstance(one, ast.Constant)
            # What another program is told besides (`relay.http.gate.auth`) is not said here.
            else "" if ast.unparse(one) == "{also}" else "{}"
            for one in node.values
        )  # fmt: skip
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                yield from _spelt(one.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _spelt(child)


def _strings(value: object) -> Iterator[str]:
    """Each text within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from _strings(one)


class _Source:
    """A module that refuses."""

    def __init__(self, path: Path, text: str) -> None:
        self.nodes = list(ast.walk(ast.parse(text)))
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        self.module = importlib.import_module(".".join(parts))
        self.local: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in (one for each in node.targets for one in ast.walk(each)):
                    if isinstance(target, ast.Name):
                        self.local.setdefault(target.id, []).append(node.value)

    def literals(self, node: ast.expr, *, deep: bool = True) -> Iterator[str]:
        """What an argument may be: its literals, and those that its names stand for."""
        yield from _spelt(node)
        for name in (one.id for one in ast.walk(node) if isinstance(one, ast.Name)):
            yield from _strings(getattr(self.module, name, None))
            for value in self.local.get(name, []) if deep else []:
                yield from self.literals(value, deep=False)

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Each call of a name."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node.func.id, node


def _sources(within: str, naming: str = "") -> Iterator[_Source]:
    """The modules within a folder, or that one, but those that only programs are told of.

    `naming`: those in whose text this is found, for to take a module apart costs a hundred times
    as much as that.
    """
    place = ROOT / within
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        shown = path.relative_to(ROOT).as_posix()
        text = path.read_text("utf-8")
        if re.search(naming, text) and not any(
            shown == one or shown.startswith(f"{one}/") for one in PROGRAMS
        ):
            yield _Source(path, text)


def _of_problems(http: Iterable[_Source]) -> Iterator[str]:
    """What is given to `Problem`, and to what makes one."""
    for source in http:
        for name, call in source.calls():
            told = call.args[2:3] if name == "Problem" else call.args[:1] if name in MAKERS else []
            for one in told:
                yield from source.literals(one)
            if name == "repeated_parameter":
                yield from _spelt(call.args[1])
            if name == "removed":
                for keyword in call.keywords:
                    if keyword.arg == "missing":
                        yield from (f"{one[0].upper()}{one[1:]}" for one in _spelt(keyword.value))
        if source.module is problem_details:  # which says nothing but what it tells
            about = {id(one.value) for one in source.nodes if isinstance(one, ast.Expr)}
            wholes = [one for one in source.nodes if isinstance(one, ast.JoinedStr)]
            pieces = {id(one) for whole in wholes for one in whole.values}
            for node in source.nodes:
                if isinstance(node, (ast.Constant, ast.JoinedStr)):
                    yield from () if id(node) in about | pieces else _spelt(node)


def _of_exceptions(http: Iterable[_Source]) -> Iterator[str]:
    """What is given to an exception whose text is said, wherever it is raised."""
    found = set()
    for source in http:
        for handler in source.nodes:
            if not (isinstance(handler, ast.ExceptHandler) and handler.name and handler.type):
                continue
            raised = [one.exc for one in ast.walk(handler) if isinstance(one, ast.Raise)]
            if any(
                isinstance(one, ast.Name) and one.id == handler.name
                for exc in raised if exc is not None
                for one in ast.walk(exc)
            ):  # fmt: skip
                found |= {one.id for one in ast.walk(handler.type) if isinstance(one, ast.Name)}
    assert found <= WORDED.keys() | ELSEWHERE, "is its text in a table?"
    for source in _sources(".", rf"\b({'|'.join(WORDED)})\("):
        for name, call in source.calls():
            if name in WORDED and call.args:
                yield from map(WORDED[name], _spelt(call.args[-1]))
    # Of an address it is worded further.
    for source in (*_sources("http/resources", r"ValueError\("), *_sources("addresses.py")):
        for name, call in source.calls():
            if name == "ValueError":
                yield from _spelt(call.args[0])
    for source in _sources("outbound/queue/states.py"):
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and node.name in WORDED:  # which words itself
                for part in ast.walk(node):
                    if isinstance(part, ast.JoinedStr):
                        yield from map(WORDED[node.name], _spelt(part))


def _of_accounts() -> Iterator[str]:
    """What SQL says of an account that may not be mailed."""
    for path in sorted((ROOT / "db" / "migrations").glob("*.sql")):
        for text in re.findall(r"RAISE EXCEPTION '(account [^']*)'", path.read_text("utf-8")):
            yield text.replace("%", "{}").capitalize()


def _models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in base.__subclasses__():
        yield one
        yield from _models(one)


def _faults(schema: Any) -> Iterator[str]:
    """What a value of this schema may be refused for."""
    if isinstance(schema, dict):
        kind = schema.get("type")
        if isinstance(kind, str):
            assert kind in FAULTS, f"what may {kind} be refused for?"
            yield from FAULTS[kind]
            for name in schema.keys() - NO_BOUND:
                assert (kind, name) in BOUNDS, f"what does {name} of {kind} refuse?"
                yield BOUNDS[kind, name]
        for name, one in schema.items():
            if name not in {"metadata", "serialization"}:
                yield from _faults(one)
    elif isinstance(schema, (list, tuple)):
        for one in schema:
            yield from _faults(one)


def _of_models() -> Iterator[str]:
    """What the models of the calls may refuse, as an answer has it."""
    for one in pkgutil.iter_modules(resources.__path__):
        importlib.import_module(f"{resources.__name__}.{one.name}")
    kinds = set()
    for model in (*_models(Form), *_models(Query)):
        if ".compat." not in model.__module__:
            model.model_rebuild()
            kinds |= set(_faults(model.__pydantic_core_schema__))
    for kind in kinds:
        template = PydanticKnownError(kind, _CONTEXT).message_template  # type: ignore[arg-type]
        context = {name: _CONTEXT[name] for name in re.findall(r"\{(\w+)\}", template)}
        fault = {"type": kind, "loc": ("name",), "input": None, "ctx": context}
        error = ValidationError.from_exception_data("a model", [fault])  # type: ignore[list-item]
        (sentence,) = invalid(error, "body").errors or [""]
        yield re.sub("7{4}", "{}", sentence.removeprefix("name: "))


_CONTEXT: dict[str, Any] = {
    "actual_length": 7777, "error": "7777", "expected": "7777", "expected_plural": "",
    "field_type": "7777", "ge": 7777, "gt": 7777, "le": 7777, "lt": 7777, "max_length": 7777,
    "min_length": 7777, "pattern": "7777", "class_name": "7777", "tz_expected": 7777,
    "tz_actual": 7777,
}  # fmt: skip


@functools.cache
def refusals() -> frozenset[str]:
    """Every sentence of a refusal, as the key of a table."""
    http = list(_sources("http"))
    said = (*_of_problems(http), *_of_exceptions(http), *_of_accounts(), *_of_models())
    found = {
        key
        for text in said
        for key in map(keyed, text.split("; "))
        if " " in key.strip() and re.search("[a-z]{2}", key) and not NOT_SAID.match(key)
    }
    of_any = [re.escape(key[4:]) for key in found if re.match(r"\{0\} is ", key)]
    name = re.compile(rf"[\w.]+ ({'|'.join(of_any)})")
    words = {*State, *VERBS.values()}  # of what is, and of what cannot be done
    return frozenset({key for key in found if not name.fullmatch(key)} | words)


@functools.cache
def _patterns() -> re.Pattern[str]:
    sentences = (re.sub(r"\\\{\d\\\}", ".+", re.escape(key)) for key in refusals())
    return re.compile("|".join(sentences), re.DOTALL)


def is_known(sentence: str) -> bool:
    """Whether a sentence of an answer is one of them, behind the names that it is about or not."""
    said = sentence.removesuffix(".")
    if _patterns().fullmatch(said):
        return True
    if "; " in said:
        return all(map(is_known, said.split("; ")))
    _, _, rest = said.partition(": ")
    return bool(rest) and is_known(rest)
