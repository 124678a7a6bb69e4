"""What `make dist` does: every package that is given out, made of the last commit, into `dist/`.

    relay_mail-….whl, relay_mail-….tar.gz     the program; PostgreSQL comes as a dependency
    relay_client-….whl                        the Python client (clients/python)
    relay-client-….tgz                        the client for npm (clients/typescript)

Promises
  * From the same commit the same bytes: times are the commit's, archives name nobody and are in
    order, and nothing is packed that is not committed.
  * What cannot be built is an error; a package is there whole or not at all.

Needs git, the build tool of the lock, and for npm's package Node.js, npm and a network.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BUILD = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"


def build(out: Path, names: tuple[str, ...] = ("relay", "python", "typescript")) -> list[Path]:
    """Make these packages in `out`; return them."""
    out.mkdir(parents=True, exist_ok=True)
    before = set(out.iterdir())
    with tempfile.TemporaryDirectory(prefix="relay-dist-") as scratch:
        tree = Path(scratch) / "tree"
        epoch = _checked_out(tree)
        if "relay" in names:
            _python(tree, "build_wheel", out, epoch)
            _python(tree, "build_sdist", out, epoch)
        if "python" in names:
            _python(tree / "clients" / "python", "build_wheel", out, epoch)
        if "typescript" in names:
            _npm(tree / "clients" / "typescript", out, epoch)
    return sorted(set(out.iterdir()) - before)


def _checked_out(tree: Path) -> int:
    """Lay out the files of the last commit in `tree`; return when it was made."""
    tree.mkdir()
    archive = _run(["git", "archive", "--format=tar", "HEAD"], ROOT)
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(tree, filter="data")
    return int(_run(["git", "log", "-1", "--format=%ct"], ROOT))


def uncommitted(root: Path) -> list[str]:
    """Return the files of a tree that are not as in its last commit, which is what is packed."""
    said = _run(["git", "status", "--porcelain", "--no-renames", "-z"], root).decode()
    return sorted(line[3:] for line in said.split("\0") if line)


def _python(project: Path, hook: str, out: Path, epoch: int) -> None:
    with tempfile.TemporaryDirectory(dir=project.parent) as made:
        _run([sys.executable, "-c", _BUILD, hook, made], project, epoch)
        (package,) = Path(made).iterdir()
        if package.suffix == ".gz":
            _rewrite(package, epoch)
        shutil.copy(package, out / package.name)
    for left in ("build", *(path.name for path in project.glob("*.egg-info"))):
        shutil.rmtree(project / left, ignore_errors=True)


def _rewrite(package: Path, epoch: int) -> None:
    """Pack a source distribution again, with one time, nobody's name and its files in order."""
    packed = io.BytesIO()
    with tarfile.open(package) as old, tarfile.open(fileobj=packed, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            content = old.extractfile(member)
            member.mtime = epoch
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, content)
    package.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def _npm(project: Path, out: Path, epoch: int) -> None:
    _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], project, epoch)
    with tempfile.TemporaryDirectory(dir=project.parent) as made:
        _run(["npm", "pack", "--pack-destination", made], project, epoch)
        (package,) = Path(made).iterdir()
        shutil.copy(package, out / package.name)


def _run(command: list[str], folder: Path, epoch: int = 0) -> bytes:
    env = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONHASHSEED": "0",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, check=False, umask=0o022
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace")[-4000:]
        raise SystemExit(f"{' '.join(command[:3])} failed:\n{said}")
    return done.stdout


def main() -> None:
    """Make all packages in `dist/`, anew, and say which."""
    changed = uncommitted(ROOT)
    if changed:
        print("Not packed, because not committed:", *changed, sep="\n  ", file=sys.stderr)
    out = ROOT / "dist"
    shutil.rmtree(out, ignore_errors=True)
    for package in build(out):
        print(f"{package.relative_to(ROOT)}  {package.stat().st_size / 1000:,.0f} kB")


if __name__ == "__main__":
    main()
