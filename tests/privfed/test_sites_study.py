"""The study of sites: its made-up patients, and that its tables say what its page does."""

import csv
from pathlib import Path

import numpy as np
import pytest

from experiments.sites.patients import MOST, Patients, dealt
from privfed.parts import find
from privfed.streams import Streams

STUDY = Path(__file__).parents[2] / "experiments" / "sites"
STREAMS = Streams(3, simulated=True)


def accuracies(table, *keys):
    """The mean accuracy in per cent of each cell, by `keys`."""
    with (STUDY / f"{table}.summary.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert all(row["seeds"] == "5" and not int(row["not_done"]) for row in rows)
    return {tuple(row[key] for key in keys): 100 * float(row["accuracy_mean"]) for row in rows}


def test_the_source_declares_what_sources_have_to():
    find("source", "experiments.sites.patients:Patients", "data.source")


def test_patients_have_one_to_ten_rows_each():
    owners = dealt(1438, 359, np.random.default_rng(0))
    sizes = np.bincount(owners, minlength=359)
    assert (len(owners), sizes.min(), sizes.max() <= MOST) == (1438, 1, True)
    assert len(np.unique(dealt(10, 1, np.random.default_rng(0)))) == 1
    for rows, patients in ((10, 11), (11, 1)):
        with pytest.raises(ValueError, match=f"{rows} rows for {patients} patients"):
            dealt(rows, patients, np.random.default_rng(0))


@pytest.mark.parametrize("table", ["digits", "breast_cancer"])
def test_public_rows_are_nobodys_and_hospitals_hold_the_patients_rows(table):
    source = Patients(table=table)
    people, public = source.load(150, STREAMS), source.load_test(150, STREAMS)
    hospitals = Patients(table=table, client="hospital").load(5, STREAMS)
    assert people.x.abs().max() <= 0.5
    assert (people.x**2).sum(1).max() <= source.squared_norm
    assert len(people) == len(hospitals) == pytest.approx(4 * len(public), rel=0.01)
    assert (people.x == hospitals.x).all()
    assert np.ptp(np.bincount(hospitals.owners)) <= 1
    everything = np.concatenate([people.x.numpy(), public.x.numpy()])
    assert len(np.unique(everything, axis=0)) == len(everything)
