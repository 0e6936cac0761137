"""The study of sites: its made-up patients, and that its tables say what its page does."""

import csv
from pathlib import Path

import numpy as np
import pytest

from experiments.sites.patients import MOST, Patients, assigned
from privfed.core.parts import find
from privfed.core.streams import Streams

STUDY = Path(__file__).parents[2] / "experiments" / "sites"
STREAMS = Streams(3, simulated=True)


def accuracies(table, *keys):
    """The mean accuracy in per cent of each cell, by `keys`."""
    with (STUDY / f"{table}.summary.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert all(row["seeds"] in ("5", "10") and not int(row["not_done"]) for row in rows)
    return {tuple(row[key] for key in keys): 100 * float(row["accuracy_mean"]) for row in rows}


def test_the_source_declares_what_sources_have_to():
    find("source", "experiments.sites.patients:Patients", "data.source")


def test_patients_have_one_to_ten_rows_each():
    owners = assigned(1438, 359, np.random.default_rng(0))
    sizes = np.bincount(owners, minlength=359)
    assert (len(owners), sizes.min(), sizes.max() <= MOST) == (1438, 1, True)
    assert len(np.unique(assigned(10, 1, np.random.default_rng(0)))) == 1
    for rows, patients in ((10, 11), (11, 1)):
        with pytest.raises(ValueError, match=f"{rows} rows for {patients} patients"):
            assigned(rows, patients, np.random.default_rng(0))


@pytest.mark.parametrize("rows", ["images", "nuclei"])
def test_public_rows_are_nobodys_and_hospitals_hold_the_patients_rows(rows):
    source = Patients(rows=rows)
    population, public = source.load(150, STREAMS), source.load_test(150, STREAMS)
    hospitals = Patients(rows=rows, client="hospital").load(5, STREAMS)
    assert population.x.abs().max() <= 0.5
    assert (population.x**2).sum(1).max() <= source.squared_norm
    assert len(population) == len(hospitals) == pytest.approx(4 * len(public), rel=0.01)
    assert (population.x == hospitals.x).all()
    assert np.ptp(np.bincount(hospitals.owners)) <= 1
    everything = np.concatenate([population.x.numpy(), public.x.numpy()])
    assert len(np.unique(everything, axis=0)) == len(everything)


def test_one_noise_is_nearly_as_good_as_pooled_noise():
    means = accuracies("grid", "method", "data.sites", "privacy.epsilon")

    def behind(method, epsilon, sites="5"):
        return means["pooled", "5", epsilon] - means[method, sites, epsilon]

    for method in ("one noise, layers", "one noise, minimum"):
        assert all(behind(method, epsilon) <= 1.5 for epsilon in ("2", "4", "8"))
        assert behind(method, "1") <= 4
        for sites in ("3", "10", "30"):
            assert behind(method, "1", sites) <= 4
            assert behind(method, "4", sites) <= 1.5
        assert behind(method, "0.5") < 10 < behind("noise of each site", "0.5")
    for epsilon, most in (("0.5", 3.5), ("1", 1.2), ("2", 1.0), ("4", 0.5), ("8", 1.1)):
        assert behind("one noise, layers", epsilon) <= most
    assert all(behind("noise of each site", "1", sites) > 4 for sites in ("3", "5", "10", "30"))


def test_a_hospital_is_not_hidden_among_a_handful():
    means = accuracies("hospitals", "data.clients", "privacy.epsilon")
    assert all(mean < 60 for (sites, _), mean in means.items() if int(sites) <= 5)
    assert means["30", "4"] > 85


def test_a_colluder_or_a_missing_site_costs_little_with_layers():
    keys = "method", "secure.colluders", "cohort.dropout", "data.site_partition", "privacy.epsilon"
    means = accuracies("price", *keys)
    for epsilon, most in (("1", 6.0), ("4", 2.5)):
        least = means["one noise, layers", "0.2", "0", "even", epsilon]
        for colluders, dropout in (("0.4", "0"), ("0.2", "0.13"), ("0.4", "0.13")):
            cost = least - means["one noise, layers", colluders, dropout, "even", epsilon]
            assert cost < most
        minimum = means["one noise, minimum", "0.4", "0", "even", epsilon]
        assert minimum < means["one noise, layers", "0.4", "0", "even", epsilon]


def test_one_noise_has_the_multiplier_of_a_gaussian():
    with (STUDY / "grid.csv").open() as lines:
        cells = [row for row in csv.DictReader(lines) if row["data.sites"] == "5"]
    z = {(row["method"], row["privacy.epsilon"]): float(row["noise_multiplier"]) for row in cells}
    for epsilon in ("0.5", "1", "2", "4", "8"):
        for method in ("one noise, layers", "one noise, minimum"):
            assert z[method, epsilon] == pytest.approx(z["pooled", epsilon], rel=0.0003)


def test_what_is_scored_on_the_page_is_what_the_tables_say():
    page = (STUDY / "README.md").read_text("utf-8")
    for table, keys in (("grid", ("method", "data.sites")), ("table", ("method", "data.sites"))):
        means = accuracies(table, *keys, "privacy.epsilon")
        for name, label in (("pooled", "pooled central noise"), ("one noise, layers",) * 2):
            line = " | ".join(f"{means[name, '5', e]:.1f}" for e in ("0.5", "1", "2", "4", "8"))
            assert f"| {label} | {line} |" in page
