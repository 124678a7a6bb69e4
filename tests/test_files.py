"""Files that are replaced whole: what is on the disk, in which order, whenever it stops."""

import os
import stat

import pytest

from relay import files


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    """The new content is there, for its owner alone, and no draft."""
    file = tmp_path / "secret"
    files.replace(file, b"one")
    files.replace(file, b"two")
    assert file.read_bytes() == b"two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_return(
    tmp_path, monkeypatch
):
    """Flushed, renamed, and the directory flushed: in that order."""
    done = []
    fsync, rename = os.fsync, os.replace

    def synced(fd: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def renamed(source: os.PathLike[str], target: os.PathLike[str]) -> None:
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    files.replace(tmp_path / "file", b"content")
    assert done == ["file", "rename", "directory"]


def test_who_dies_before_the_rename_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    """A disk that fails at the flush leaves the old content under the name."""
    file = tmp_path / "file"
    files.replace(file, b"old")

    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output"):
            files.replace(file, b"new")
    assert file.read_bytes() == b"old"
    files.replace(file, b"newer")
    assert file.read_bytes() == b"newer"
