"""Writes are synced before they count: the file, then its name in the folder."""

import os
from pathlib import Path

import pytest

from accounting import durable
from accounting.errors import Misplaced


@pytest.fixture
def log(monkeypatch):
    """Every sync and rename in order, with how much of the file was there."""
    calls = []
    fsync, rename = os.fsync, Path.replace

    def logged_fsync(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        calls.append(("sync", path.name, path.stat().st_size if path.is_file() else None))
        fsync(descriptor)

    def logged_rename(self, target):
        calls.append(("rename", self.name, target.name))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(Path, "replace", logged_rename)
    return calls


def test_a_replaced_file_is_synced_then_renamed_then_its_folder_synced(tmp_path, log):
    durable.write_atomically(tmp_path / "file", b"12345")
    temporary = ".file.tmp"
    assert log == [
        ("sync", temporary, 5),
        ("rename", temporary, "file"),
        ("sync", tmp_path.name, None),
    ]
    assert (tmp_path / "file").read_bytes() == b"12345"


def test_parts_are_written_in_order_and_then_synced_once(tmp_path, log):
    durable.write_parts_atomically(tmp_path / "file", iter([b"12", memoryview(b"345"), b""]))
    assert (tmp_path / "file").read_bytes() == b"12345"
    assert log[0] == ("sync", ".file.tmp", 5)


def test_parts_that_fail_leave_the_file_as_it_was(tmp_path):
    def failing():
        yield b"1"
        raise RuntimeError("no more of it")

    durable.write_atomically(tmp_path / "file", b"before")
    with pytest.raises(RuntimeError, match="no more"):
        durable.write_parts_atomically(tmp_path / "file", failing())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def test_an_appended_line_is_synced_with_its_last_byte(tmp_path, log):
    (tmp_path / "file").write_bytes(b"123")
    durable.append(tmp_path / "file", b"45")
    assert log == [("sync", "file", 5)]
    durable.append(tmp_path / "new", b"1")
    assert log[1:] == [("sync", "new", 1), ("sync", tmp_path.name, None)]


def test_a_created_file_is_synced_and_so_is_its_name(tmp_path, log):
    durable.create(tmp_path / "file", b"123")
    assert log == [("sync", "file", 3), ("sync", tmp_path.name, None)]
    with pytest.raises(FileExistsError):
        durable.create(tmp_path / "file", b"")


def test_every_new_folder_is_synced_in_the_one_above_it(tmp_path, log):
    durable.make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert log == [("sync", tmp_path.name, None), ("sync", "a", None), ("sync", "b", None)]
    durable.make_folder(tmp_path / "a" / "b" / "c")
    assert len(log) == 3


@pytest.mark.parametrize("target", ["nowhere", "link"], ids=["dangling", "looping"])
def test_a_link_that_leads_nowhere_is_no_place_for_a_folder(tmp_path, target):
    (tmp_path / "link").symlink_to(target)
    for place in ("link", "link/inside"):
        with pytest.raises(Misplaced, match=f"link is a symbolic link to {target}, but its target"):
            durable.make_folder(tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
