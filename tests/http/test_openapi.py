"""What /openapi.json says beside the calls: names, sections, examples, times, problems; and the
pages of problems."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from relay.http.description.openapi import SECTIONS
from relay.http.problems.types import PREFIX, TYPES
from tests.http.test_ui import PARTS, compare, table
from tests.relay_process import RelayProcess

INSTANT = re.compile(r"\w+_at|at|not_after")


@pytest.fixture(scope="module")
def document(relay: RelayProcess) -> dict[str, Any]:
    """The description, as a running relay gives it."""
    answer = httpx.get(f"{relay.run['http']}/openapi.json", trust_env=False)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every call."""
    for methods in document["paths"].values():
        yield from methods.values()


def test_every_call_has_a_name_that_reads_and_a_section(document: dict[str, Any]) -> None:
    """A verb in camelCase, no two alike; calls come section by section, as people need them."""
    names = [operation["operationId"] for operation in operations(document)]
    assert len(set(names)) == len(names) > 90
    for name in names:
        assert re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name), name
    assert {"createMailbox", "waitForMessage", "sendMessage", "getSentMessage"} <= set(names)
    sections = list(dict.fromkeys(operation["tags"][0] for operation in operations(document)))
    assert sections == list(SECTIONS) == [tag["name"] for tag in document["tags"]]


def test_each_language_says_what_calls_do(document: dict[str, Any]) -> None:
    """Each summary and description, parameter, field and answer is in its tables, and no more."""
    calls: set[str] = set()
    answers: set[str] = set()
    for schema in document["components"]["schemas"].values():
        answers |= {one.get("description", "") for one in schema.get("properties", {}).values()}
    for operation in operations(document):
        description = operation.get("description", "")
        calls |= {
            operation["summary"],
            operation["x-credential"],
            re.sub(r" ?A key needs the scope `\w+`\.$", "", description),
        }
        answers |= {one.get("description", "") for one in operation["parameters"]}
        answers |= {one["description"] for one in operation["responses"].values()}
    answers = {re.sub(r"^(a body over )\d+", r"\1{0}", text) for text in answers}
    for name, wanted in {"calls": calls, "answers": answers}.items():
        for path in PARTS:
            if path.name.endswith(f".{name}.js"):
                compare(table(path), dict.fromkeys(wanted - {""}, "the relay"))


def test_what_lists_is_called_list(document: dict[str, Any]) -> None:
    """A call that GETs a list, and no other."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            answer = operation["responses"].get("200", {}).get("content", {})
            lists = answer.get("application/json", {}).get("schema", {}).get("type") == "array"
            named = operation["operationId"].startswith("list")
            assert named == (lists and method == "get"), f"{method} {path}"


def test_every_example_is_valid(document: dict[str, Any]) -> None:
    """Of parameters, bodies and answers, each against its schema, formats included; and every
    part of a path, every body and every answer has one."""
    seen = 0

    def check(schema: dict[str, Any], value: Any, where: str) -> None:
        nonlocal seen
        seen += 1
        whole = {**schema, "components": document["components"]}
        validator = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        assert [str(one) for one in validator.iter_errors(value)] == [], where

    for operation in operations(document):
        name = operation["operationId"]
        for parameter in operation["parameters"]:
            if parameter["in"] == "path" or "example" in parameter:
                check(parameter["schema"], parameter["example"], f"{name} {parameter['name']}")
        bodies = {"body": operation.get("requestBody", {}), **operation["responses"]}
        for status, body in bodies.items():
            for media, content in body.get("content", {}).items():
                if media == "application/problem+json":
                    for case, one in content["examples"].items():
                        shown = document["components"]["examples"][case] if "$ref" in one else one
                        check(content["schema"], shown["value"], f"{name} {status} {case}")
                        assert str(shown["value"]["status"]) == status, f"{name} {case}"
                else:
                    check(content["schema"], content["example"], f"{name} {status} {media}")
    assert seen > 500


def test_every_time_is_a_date_time(document: dict[str, Any]) -> None:
    """A field that is an instant says so, whatever model it is of."""
    found = 0
    for name, schema in document["components"]["schemas"].items():
        for field, value in schema.get("properties", {}).items():
            if INSTANT.fullmatch(field):
                forms = value.get("anyOf", [value])
                assert forms[0].get("format") == "date-time", f"{name}.{field}"
                found += 1
    assert found > 30


def test_every_refusal_names_its_problems(document: dict[str, Any]) -> None:
    """Each answer of 400 and above enumerates them, and each problem but the framework's is some
    call's."""
    kinds = document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert kinds == [PREFIX + case for case in TYPES]
    used = set()
    for operation in operations(document):
        for status, answer in operation["responses"].items():
            content = answer.get("content", {}).get("application/problem+json")
            if status >= "400" and content is not None:
                assert content["examples"], f"{operation['operationId']} {status}"
                used |= content["examples"].keys()
    assert TYPES.keys() - used == {"method-not-allowed", "refused"}


def test_the_type_of_a_problem_is_the_address_of_its_page(relay: RelayProcess) -> None:
    """As an answer has it; every page says what the problem means, what to do, and who answers
    so.  There is no page of what there is not."""
    with httpx.Client(base_url=relay.run["http"], trust_env=False) as client:
        problem = client.get("/api/v1/mailboxes/nobody@relay.localhost").json()
        page = client.get(problem["type"])
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "unsafe" not in page.headers["Content-Security-Policy"]
        assert problem == TYPES["mailbox-not-found"].example("mailbox-not-found")
        assert 'href="/docs#getMailbox"' in page.text
        for case, kind in TYPES.items():
            text = client.get(PREFIX + case).raise_for_status().text
            shown = html.unescape(re.sub("</?code>", "`", text))
            assert kind.remedy in shown, case
            assert f'"detail": "{kind.detail}"' in shown, case
            assert kind.when[1:] in shown, case
        assert client.get(f"{PREFIX}no-such").json()["type"] == "/problems/not-found"


def test_examples_have_the_address_that_was_asked(
    document: dict[str, Any], relay: RelayProcess
) -> None:
    """Host and port are those of this relay, in servers, samples and examples alike; each call
    has a sample for curl, for Python and for JavaScript."""
    base = relay.run["http"]
    assert document["servers"] == [{"url": base}]
    for operation in operations(document):
        labels = [sample["label"] for sample in operation["x-codeSamples"]]
        assert labels == ["curl", "Python", "JavaScript"], operation["operationId"]
        for sample in operation["x-codeSamples"]:
            assert base.partition(":")[2] in sample["source"], operation["operationId"]


@pytest.mark.timeout(120)
def test_a_generator_of_clients_has_nothing_to_warn_of(
    document: dict[str, Any], tmp_path: Path
) -> None:
    """openapi-python-client, as it comes."""
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("openapi-python-client"), "generate"),
            *("--path", "openapi.json", "--fail-on-warning"),
            *("--meta", "none", "--output-path", "client"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},  # ruff
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    assert [*tmp_path.glob("client/api/*/wait_for_message.py")]
