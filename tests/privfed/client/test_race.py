"""The fastest of several computations is found despite load, and remembered."""

import json

import numpy as np
import pytest
from helpers import population, trainer
from lanes import every_case

from privfed.client import race as module
from privfed.client.autotune import fastest
from privfed.client.race import race, remembered
from privfed.models.recipes import Mlp


class Contender:
    """Takes `seconds`, and in some turns much longer, as on a machine that does something else."""

    def __init__(self, seconds, rng, disturbed=1 / 3):
        self.seconds, self.rng, self.disturbed, self.turns = seconds, rng, disturbed, 0

    def __call__(self):
        self.turns += 1
        late = self.rng.random() < self.disturbed
        return self.seconds * (1 + 0.02 * self.rng.random() + late * 3 * self.rng.random())


@every_case("seed", range(20))
def test_the_best_is_found_while_every_third_turn_is_disturbed(seed):
    rng = np.random.default_rng(seed)
    contenders = [Contender(seconds, rng) for seconds in (1.25, 1.0, 1.2, 3.0)]
    shortest = race(contenders)
    assert shortest[1] == min(shortest) <= 1.02


def test_close_contenders_take_more_turns_than_slow_ones():
    rng = np.random.default_rng(0)
    close, best, slow = (Contender(seconds, rng, 0.0) for seconds in (1.03, 1.0, 9.0))
    race([close, best, slow])
    assert slow.turns == 2
    assert close.turns == best.turns > 3


def test_a_first_turn_that_loads_code_gives_nobody_up():
    times = iter([9.0, 0.5, 0.5, *[0.5] * 20])
    assert race([lambda: next(times), lambda: 1.0]) == [0.5, 1.0]


def test_a_long_race_ends_after_three_turns(monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 0.0)
    rng = np.random.default_rng(0)
    both = [Contender(1.0, rng, 0.0) for _ in range(2)]
    race(both)
    assert [each.turns for each in both] == [3, 3]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVFED_CACHE", str(tmp_path / "with a space" / "cache"))
    return tmp_path / "with a space" / "cache"


def test_times_are_remembered_per_question(cache):
    assert remembered({"model": "a"}, 2, lambda: [2.0, 1.0]) == [2.0, 1.0]
    assert remembered({"model": "a"}, 2, lambda: [0.5, 0.5]) == [2.0, 1.0]
    assert remembered({"model": "b"}, 1, lambda: [3.0]) == [3.0]
    assert len(list(cache.iterdir())) == 2


@every_case(
    "content",
    [
        *("", "{", "[1]", b"\xff\xfe", '{"seconds": "x"}', '{"seconds": []}'),
        *('{"seconds": [-1.0]}', '{"seconds": [NaN]}', '{"seconds": [1e999]}'),
        *('{"seconds": [1.0, 2.0]}', '{"seconds": [1%s]}' % ("0" * 400)),
    ],
)
def test_a_damaged_file_is_replaced(cache, content):
    remembered({}, 1, lambda: [1.0])
    (path,) = cache.iterdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert remembered({}, 1, lambda: [7.0]) == [7.0]
    assert json.loads(path.read_text())["seconds"] == [7.0]


def test_a_folder_that_cannot_be_made_is_not_needed(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRIVFED_CACHE", str(tmp_path / "file" / "cache"))
    assert remembered({}, 1, lambda: [1.0]) == [1.0]
    assert remembered({}, 1, lambda: [2.0]) == [2.0]


def test_an_empty_variable_remembers_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVFED_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert remembered({}, 1, lambda: [1.0]) == [1.0]
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("PRIVFED_CACHE")
    remembered({}, 1, lambda: [1.0])
    assert [path.name for path in tmp_path.iterdir()] == ["privfed"]


def test_a_run_with_the_same_model_chooses_without_a_measurement(cache, monkeypatch):
    def local(hidden, batch_size=4):
        model = Mlp(hidden=[hidden])
        return trainer(population((3, 9, 4)), model=model, batch_size=batch_size)

    first = fastest(local(2000), cohort=4, way="auto", chunk=0)
    monkeypatch.setattr("privfed.client.autotune.race", lambda contenders: pytest.fail("raced"))
    assert fastest(local(2000), cohort=4, way="auto", chunk=0) == first
    for other in (local(2001), local(2000, batch_size=5)):
        with pytest.raises(pytest.fail.Exception, match="raced"):
            fastest(other, cohort=4, way="auto", chunk=0)
