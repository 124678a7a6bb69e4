"""The tarball: what is in it, whether it can be made again, and whether it can be installed."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path

from conftest import HERE, Run, digest, packed
from readme import PROGRAMS

_NPMS_TIME = 499162500  # which every tarball of npm's has, so that it can be made again


def test_the_same_files_give_the_same_tarball(run: Run, tarball: Path, tmp_path: Path) -> None:
    """From another folder, with other times; that they are built alike `make dist` shows.

    What is in it has npm's one time, not the files' own, and there is nobody's test in it.
    """
    copy = tmp_path / "copy"
    left_out = shutil.ignore_patterns("node_modules", "*cache*")
    shutil.copytree(HERE, copy, ignore=left_out, copy_function=shutil.copy)
    (tmp_path / "packed").mkdir()
    again = packed(run, copy, tmp_path / "packed", "--ignore-scripts")
    assert digest(again) == digest(tarball)
    with tarfile.open(tarball) as found:
        files = {one.name.removeprefix("package/"): one for one in found}
    beside = {"LICENSE", "README.md", "package.json"}
    assert {name for name in files if not name.startswith("dist/")} == beside
    assert files["dist/esm/cli.js"].mode & 0o111
    assert {one.mtime for one in files.values()} == {_NPMS_TIME}
    assert tarball.stat().st_size < 55_000


def test_nothing_comes_with_it(clean: Path) -> None:
    """It has no dependency."""
    lock = json.loads((clean / "package-lock.json").read_text())
    assert [name for name in lock["packages"] if name] == ["node_modules/relay-client"]


def test_it_is_imported_and_required(run: Run, clean: Path) -> None:
    """As an ES module and as CommonJS, with the same names."""
    names = "console.log(Object.keys(found).sort().join());"
    (clean / "imports.mjs").write_text(f"import * as found from 'relay-client'; {names}")
    (clean / "requires.cjs").write_text(
        f"const found = require('relay-client'); {names}"
        "require('relay-client/playwright').test.extend({});"
    )
    imported = run("node", "imports.mjs", folder=clean).stdout
    assert imported == run("node", "requires.cjs", folder=clean).stdout
    assert "Relay,RelayError," in imported


def test_the_readmes_program_runs(run: Run, clean: Path) -> None:
    """As it stands there; what its comments say is printed is printed."""
    program = PROGRAMS["client"]
    (clean / "client.mjs").write_text(program)
    said = run("node", "client.mjs", folder=clean).stdout
    printed = re.findall(r"^console\.log\(.*\); // (\S.*)$", program, re.MULTILINE)
    assert len(printed) == 4
    for line in printed:
        assert line in said


def test_the_readmes_shell_program_runs(run: Run, clean: Path) -> None:
    """With the command that the tarball brings."""
    (clean / "shell.sh").write_text("set -eu\n" + PROGRAMS["shell"])
    said = run("sh", "shell.sh", folder=clean).stdout
    assert said == "271828\nhttps://shop.example/reset?token=1\n"
