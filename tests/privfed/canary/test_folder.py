"""The folder of canaries: drawn once, secret, and committed to before any run."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from lanes import every_case

from accounting.errors import Misplaced
from privfed.canary import Client, drawing, participants
from privfed.canary.drawing import CanaryRequest
from privfed.canary.folder import Folder
from privfed.core.errors import Broken, Refused


def drawn(path, relation="add/remove", count=40, seed=1):
    return CanaryRequest(count, 50, 0.5, relation, seed).write(path)


@pytest.fixture
def folder(tmp_path):
    return drawn(tmp_path / "canaries")


def test_nobody_else_may_read_it(folder):
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.path.parent.iterdir()] == [folder.path.name]


def test_coins_are_fair_and_directions_random_of_length_one(tmp_path):
    folder = drawn(tmp_path / "canaries", count=2000, seed=None)
    assert abs(folder.inclusion().mean() - 0.5) < 0.07  # six deviations
    directions = np.array(folder.directions())
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, rtol=1e-5)
    gram = directions @ directions.T - np.eye(2000)
    assert gram.std() == pytest.approx(50**-0.5, rel=0.02)
    again = drawn(tmp_path / "again", count=2000, seed=None)
    assert not np.array_equal(folder.inclusion(), again.inclusion())
    assert not np.array_equal(directions[0], again.directions()[0])
    assert not folder.manifest().simulated


def test_a_seed_draws_the_same_and_is_declared(tmp_path):
    first, other = drawn(tmp_path / "a"), drawn(tmp_path / "b")
    assert first.manifest() == other.manifest()
    assert first.manifest().simulated
    assert drawn(tmp_path / "c", seed=2).manifest() != first.manifest()


@every_case(("relation", "tails"), [("add/remove", None), ("zero-out", 0.0), ("replace-one", -1.0)])
def test_a_coin_means_what_the_relation_says(tmp_path, relation, tails):
    folder = drawn(tmp_path / "canaries", relation)
    inclusion, directions = folder.inclusion(), np.array(folder.directions(), dtype=float)
    everybody = list(range(40))
    heads = np.flatnonzero(inclusion).tolist()
    assert participants(folder.path) == (heads if tails is None else everybody)
    for number in participants(folder.path):
        expected = directions[number] * (500.0 if inclusion[number] else 500.0 * tails)
        canary = Client(folder.path, number)
        np.testing.assert_allclose(canary.answer(np.zeros(50)), expected)
        np.testing.assert_allclose(canary.update, expected)


def test_a_canary_whose_coin_shows_tails_is_no_client_under_add_remove(folder):
    stays = int(np.flatnonzero(~folder.inclusion())[0])
    with pytest.raises(Refused, match="is excluded by its inclusion bit"):
        Client(folder.path, stays)
    with pytest.raises(Refused, match="expected a number from 0 to 39"):
        Client(folder.path, 40)


def test_what_lies_there_is_never_overwritten(folder):
    before = folder.manifest()
    with pytest.raises(Refused, match="nothing was changed"):
        drawn(folder.path, seed=9)
    assert folder.manifest() == before


def test_an_interrupted_draw_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(self, path, key):
        raise KeyboardInterrupt

    monkeypatch.setattr(CanaryRequest, "_write_directions", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drawn(tmp_path / "canaries")
    assert not [*tmp_path.iterdir()]


@every_case(
    ("count", "dimension", "clip", "relation", "problem"),
    [
        (500, 10**7, 1.0, "zero-out", "at most 107"),
        (0, 10, 1.0, "zero-out", "1 or more"),
        (10, 10, 0.0, "zero-out", "above 0"),
        (10, 10, float("nan"), "zero-out", "above 0"),
        (10, 10, 1e37, "zero-out", "above 0"),
        (10, 10, 1.0, "swap", "'replace-one'"),
    ],
    ids=["memory", "none", "no clip", "nan", "beyond float32", "relation"],
)
def test_what_cannot_be_drawn_is_refused(count, dimension, clip, relation, problem):
    with pytest.raises(Refused, match=problem):
        CanaryRequest(count, dimension, clip, relation)


def test_commitments_hold_what_was_drawn(folder):
    folder.check_commitments()


def flip_a_coin(folder):
    np.save(folder.inclusion_path, ~folder.inclusion())


def change_the_key(folder):
    folder.key_path.write_bytes(bytes(31) + b"1")


def swap_directions(folder):
    np.save(folder.directions_path, np.array(folder.directions())[::-1])


@pytest.mark.parametrize("change", [flip_a_coin, change_the_key, swap_directions])
def test_whoever_changes_a_secret_breaks_a_commitment(folder, change):
    change(folder)
    with pytest.raises(Broken, match="not match the manifest's commitment"):
        folder.check_commitments()


def test_commitments_hide_coins_without_the_key(tmp_path):
    """The same coins under another key have another commitment."""
    folder = drawn(tmp_path / "a")
    (tmp_path / "b").mkdir()
    other = Folder(tmp_path / "b")
    for path in folder.path.iterdir():
        shutil.copy(path, other.path)
    change_the_key(other)
    from privfed.canary.folder import commitments

    assert commitments(folder).inclusion != commitments(other).inclusion


MANIFESTS = {
    "torn": b'{"format": 1, "co',
    "no object": b"[1]",
    "empty": b"",
    "deep": b"[" * 10**6,
    "binary": b"\xff\xfe",
}


@pytest.mark.parametrize("content", MANIFESTS.values(), ids=MANIFESTS)
def test_a_damaged_manifest_is_a_plain_error(folder, content):
    folder.manifest_path.write_bytes(content)
    with pytest.raises(Broken, match=r"manifest\.json"):
        Client(folder.path, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("count", 0),
        ("count", True),
        ("dimension", "50"),
        ("relation", "swap"),
        ("relation", []),
        ("length", -1),
        ("length", "1"),
        ("simulated", 0),
        ("inclusion_commitment", "00"),
        ("more", 1),
    ],
)
def test_an_edited_manifest_is_a_plain_error(folder, key, value):
    content = json.loads(folder.manifest_path.read_bytes())
    folder.manifest_path.write_text(json.dumps({**content, key: value}))
    with pytest.raises(Broken, match=r"manifest\.json"):
        folder.manifest()


@pytest.mark.parametrize("name", ["inclusion.npy", "directions.npy"])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"pickle"], ids=len)
def test_a_damaged_array_is_a_plain_error(folder, name, content):
    (folder.path / name).write_bytes(content)
    with pytest.raises(Broken, match=name):
        Client(folder.path, participants(folder.path)[0]).answer(np.zeros(50))


def test_arrays_of_another_shape_are_broken(folder):
    np.save(folder.inclusion_path, np.zeros(39, dtype=bool))
    np.save(folder.directions_path, np.zeros((40, 49), dtype=np.float32))
    with pytest.raises(Broken, match="inclusion"):
        folder.inclusion()
    with pytest.raises(Broken, match="directions"):
        folder.directions()


def test_a_client_needs_numpy_alone(folder):
    program = (
        "import sys, numpy, privfed.canary as c; "
        f"c.Client({str(folder.path)!r}, c.participants({str(folder.path)!r})[0])"
        ".answer([numpy.zeros(50)]); "
        "heavy = {'torch', 'scipy', 'dp_accounting', 'pydantic', 'click', 'safetensors'}; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "[]", ran.stderr


@pytest.mark.parametrize("number", ["1", 1.0, True], ids=repr)
def test_a_number_that_is_none_is_refused(folder, number):
    with pytest.raises(Refused, match="expected the number of a canary"):
        Client(folder.path, number)


KILLED = """
import os, signal, sys
from pathlib import Path
from privfed.canary import drawing
drawing.commitments = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
drawing.CanaryRequest(3, 4, 0.5, "add/remove").write(Path(sys.argv[1]))
"""


def test_what_a_kill_left_is_swept_by_the_next_one_and_nothing_else(tmp_path):
    path = tmp_path / "canaries"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert {each.name for each in left.iterdir()} == {"key", "inclusion.npy", "directions.npy"}
    others = [".canaries.old_copy", ".other.half-1", "canaries.half-1"]
    for name in others:
        (tmp_path / name).mkdir()
    held = tmp_path / ".canaries.half-held"
    held.mkdir()
    with drawing._locked(held):
        drawn(path)
    assert {each.name for each in tmp_path.iterdir()} == {"canaries", held.name, *others}


@pytest.mark.parametrize("target", ["nowhere", "canaries"], ids=["dangling", "looping"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, target):
    (tmp_path / "canaries").symlink_to(target)
    for place in ("canaries", "canaries/inside"):
        with pytest.raises(Misplaced, match=f"is a symbolic link to {target}, but its target"):
            drawn(tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["canaries"]
