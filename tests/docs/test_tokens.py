"""The two verifiers of docs/tokens.md, run as they stand on tokens that a relay has made."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests.cli.command import cli
from tests.docs.pages import DOCS, blocks
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

DEADLINE = 60.0  # s


class Made(NamedTuple):
    """A relay's key, and an activation and a recovery that it has signed, with their codes."""

    key: str
    activation: str
    recovery: str
    code: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Tokens in the lines of `relay collect`, from a relay whose own collector does not run."""
    folder = tmp_path_factory.mktemp("tokens") / "data"
    with RelayProcess(folder, arguments=("--only", "control")) as relay:
        with psycopg.connect(relay.run["database_url"]) as connection:
            connection.execute(
                "INSERT INTO relay.accounts (email, login, status)"
                " VALUES ('ada@example.org', 'ada', 'active')"
            )
            connection.execute(
                "INSERT INTO relay.accounts (email, login) VALUES ('bob@example.org', 'bob')"
            )
            connection.execute("SELECT relay.recover_account(id) FROM relay.accounts"
                               " WHERE login = 'ada'")  # fmt: skip
        fields: list[str] = []

        def collect() -> int:
            done = cli("collect", "--data-dir", folder)
            assert done.returncode == 0, done.stderr
            fields.extend(done.stdout.decode().replace("\n", ",").strip(",").split(","))
            return len(fields)

        eventually_sync(
            collect, "two tokens are written", until=lambda count: count >= 10, within=DEADLINE
        )
    rows = {fields[at]: fields[at : at + 5] for at in range(0, 10, 5)}
    assert rows["1"][2] == "bob"
    assert rows["2"][2] == "ada"
    key = (folder / "secret_key").read_text().strip().partition(",")[0]
    return Made(key, rows["1"][3], rows["2"][3], rows["2"][4])


def _source(language: str) -> str:
    (found,) = [b.text for b in blocks((DOCS / "tokens.md").read_text()) if b.language == language]
    return found


def _questions(made: Made) -> dict[str, tuple[tuple[str, str, str], str | None]]:
    """Return arguments of `verify`, and what it has to say, by what they are."""
    key, activation, recovery, code = made
    wrong = "00000" if code != "00000" else "00001"
    last = "AQgw".replace(activation[-1], "")[0]  # another that spells no spare bit
    spare = activation[:-1] + chr(ord(activation[-1]) + 1)
    return {
        "an activation": ((key, activation, ""), "activation"),
        "an activation, with a code": ((key, activation, code), "activation"),
        "a recovery": ((key, recovery, code), "password_recovery"),
        "a recovery without its code": ((key, recovery, ""), None),
        "a recovery with a wrong code": ((key, recovery, wrong), None),
        "another key": (("00" * 32, activation, ""), None),
        "another signature": ((key, activation[:-1] + last, ""), None),
        "another secret": ((key, recovery[:43] + activation[43:], ""), None),
        "spare bits": ((key, spare, ""), None),
        "too short": ((key, activation[:-4], ""), None),
        "padded": ((key, activation + "==", ""), None),
        "empty": ((key, "", ""), None),
        "not base64": ((key, activation[:-1] + "!", ""), None),
        "not ASCII": ((key, activation[:-1] + "ä", ""), None),
    }


def test_the_verifier_in_python(made: Made) -> None:
    """It accepts what the relay signed, and nothing else."""
    module: dict[str, object] = {}
    exec(compile(_source("python"), "docs/tokens.md", "exec"), module)
    verify = module["verify"]
    assert callable(verify)
    for what, (arguments, answer) in _questions(made).items():
        assert verify(*arguments) == answer, what


def test_the_verifier_in_javascript(made: Made, tmp_path: Path) -> None:
    """The same, in Node.js."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    (tmp_path / "verify.mjs").write_text(_source("js"))
    (tmp_path / "ask.mjs").write_text(
        'import { verify } from "./verify.mjs";\n'
        "const asked = JSON.parse(process.argv[2]);\n"
        "console.log(JSON.stringify(asked.map((given) => verify(...given))));\n"
    )
    questions = _questions(made)
    done = subprocess.run(
        [node, tmp_path / "ask.mjs", json.dumps([given for given, _ in questions.values()])],
        capture_output=True,
        timeout=DEADLINE,
        check=True,
    )
    answers = dict(zip(questions, json.loads(done.stdout), strict=True))
    assert answers == {what: answer for what, (_, answer) in questions.items()}


def test_the_verifiers_have_ten_lines(made: Made) -> None:
    """Short enough to be copied and understood; imports, blank lines and brackets aside."""
    for language in ("js", "python"):
        lines = [line for line in _source(language).splitlines() if len(line.strip()) > 1]
        assert len([line for line in lines if not line.startswith("import")]) <= 10, language
