"""Long runs stay as small as they began."""

import pytest
from trials.soak import ENTRIES, LEDGER_PER_ROUND, Readings, assert_flat, soaked

MEMORY = ("client.objective=scaffold", "data.setting=cross_silo")


def test_a_run_leaves_no_descriptor_open_and_no_file_behind(tmp_path):
    growth = soaked(tmp_path / "run", 45, *MEMORY)
    assert growth.files <= 0
    assert growth.entries <= ENTRIES
    assert growth.ledger < LEDGER_PER_ROUND


def test_a_descriptor_that_stays_open_is_noticed(tmp_path, monkeypatch):
    opened, after_round = [], Readings.after_round

    def leaking(self, round):
        opened.append((tmp_path / f"{round}").open("w"))
        after_round(self, round)

    monkeypatch.setattr(Readings, "after_round", leaking)
    growth = soaked(tmp_path / "run", 18)
    for file in opened:
        file.close()
    with pytest.raises(AssertionError, match=r"files=[1-9]"):
        assert_flat(growth)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [(), MEMORY])
def test_ten_thousand_rounds_hold_no_more_than_three_thousand(tmp_path, kind):
    assert_flat(soaked(tmp_path / "run", 10_000, *kind))
