"""Long runs stay as small as they began."""

import pytest
from trials import soak
from trials.soak import soaked

MEMORY = ("client.objective=scaffold", "data.setting=cross_silo")


def test_a_hundred_rounds_hold_no_more_than_fifty(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "MEMORY_PER_ROUND", 2**17)  # of so few rounds it says little
    assert soaked(tmp_path / "run", 90, *MEMORY).files == 0


def test_a_descriptor_that_stays_open_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "MEMORY_PER_ROUND", 2**17)
    opened = []
    after_round = soak.Readings.after_round

    def leaking(self, round):
        opened.append((tmp_path / f"{round}").open("w"))
        after_round(self, round)

    monkeypatch.setattr(soak.Readings, "after_round", leaking)
    try:
        with pytest.raises(AssertionError, match=r"files=[1-9]"):
            soaked(tmp_path / "run", 30)
    finally:
        for file in opened:
            file.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [(), MEMORY])
def test_ten_thousand_rounds_hold_no_more_than_three_thousand(tmp_path, kind):
    soaked(tmp_path / "run", 10_000, *kind)
