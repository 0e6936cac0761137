"""Whole runs by sites: with cryptography as without, and central noise as over clients."""

import numpy as np
import pytest
import torch
from lanes import every_case, mostly_slow
from small import model, small, trained

from accounting.events import ADD_REMOVE
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from privfed.core.errors import Refused
from privfed.plan.plan import plan
from privfed.run.process_group import refuse_ranks

SEEDED = ("run.randomness=seeded", "run.rounds=4", "data.sites=5")
MASKS = (*SEEDED, "secure.protocol=masks")
SKELLAM = (*MASKS, "privacy.mechanism=skellam")
SHARES = (*MASKS, "privacy.mechanism=discrete_gaussian")
RUNS = {
    "skellam": SKELLAM,
    "sites drop out": (*SKELLAM, "cohort.dropout=0.3", "privacy.tolerance=0.4", "run.seed=2"),
    "two sites": (*SKELLAM, "data.sites_per_client=2", "privacy.noise_multiplier=4"),
    "discrete Gaussian": SHARES,
    "adaptive": (*SHARES, "privacy.adaptive_clip=true", "privacy.count_noise=3"),
    "two sites, discrete Gaussian": (
        *(*SHARES, "data.sites_per_client=2", "privacy.noise_multiplier=4"),
    ),
    "central": (*MASKS, "secure.threat=malicious", "cohort.dropout=0.1"),
    "no privacy": (*MASKS, "privacy.mechanism=none"),
}


def charges(path):
    return [charge.event for charge in Ledger.load(path / "ledger.jsonl").charges]


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        RUNS, "sites drop out", "adaptive", "two sites, discrete Gaussian", "central", "skellam"
    ),
)
def test_arithmetic_alone_gives_the_same_run(tmp_path, name):
    """Bit for bit, aborts too: the noise of each site follows from the same stream."""
    trained(tmp_path / "messages", *RUNS[name])
    trained(tmp_path / "arithmetic", *RUNS[name], "secure.simulate=arithmetic")
    first, second = (model(tmp_path / name) for name in ("messages", "arithmetic"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    terms = Ledger.load(tmp_path / "messages" / "ledger.jsonl").terms
    assert terms["secure"]["cryptography"] is True


@pytest.mark.parametrize("protocol", ["masks", "bfv"])
def test_central_noise_over_sites_is_that_over_clients(tmp_path, protocol):
    """Everybody takes part, and noise is of the same stream, on sums that differ by rounding."""
    if protocol == "bfv":
        pytest.importorskip("tenseal")
    everybody = (*SEEDED, "cohort.sampler=full", "cohort.size=0")
    trained(tmp_path / "clients", *everybody, "secure.parties=clients")
    trained(tmp_path / "sites", *everybody, f"secure.protocol={protocol}", "secure.bits=32")
    plain, secure = (model(tmp_path / name) for name in ("clients", "sites"))
    for name in plain:
        torch.testing.assert_close(plain[name], secure[name], rtol=1e-5, atol=1e-5)
    assert charges(tmp_path / "clients") == charges(tmp_path / "sites")


def test_noise_of_each_site_by_itself_needs_no_protocol(tmp_path):
    """All sites' noises are in the model; each protects its own clients, drawn in secret."""
    local = (*SEEDED, "privacy.mechanism=local_gaussian")
    trained(tmp_path, *local)
    (event,) = set(charges(tmp_path))
    assert event.release == PoissonSampled(4 / 12, Gaussian(2.0))
    assert event.relation == ADD_REMOVE
    assert all(np.isfinite(tensor.numpy()).all() for tensor in model(tmp_path).values())


def test_noise_of_sites_is_added_by_one_process():
    """In several, each would add all of it."""
    config = small(*SEEDED, "privacy.mechanism=local_gaussian")
    refuse_ranks(config, 1)
    with pytest.raises(Refused, match="sites' noise is simulated in one process"):
        refuse_ranks(config, 2)


@every_case("sites", [1, 2, 4])
def test_the_grid_has_room_for_every_row_of_a_clients_sites(sites):
    """Though all of an expected cohort pull alike: four deviations of a rotated coordinate."""
    drawn, length = 400, 16
    declared = ("data.clients=1000", f"cohort.size={drawn}", f"data.sites_per_client={sites}")
    config = small(*SKELLAM, *declared, "secure.bits=18", "run.rounds=1")
    mechanism = plan(config, length=length).mechanism
    sum_of_rows = mechanism.clip * drawn * sites
    half = 2.0**17 * mechanism.grid().step
    assert sum_of_rows == pytest.approx(0.4 * drawn)
    assert half >= 4 * sum_of_rows / length**0.5


def test_an_adaptive_clip_counts_clients_and_not_their_rows():
    keys = ("data.sites_per_client=2", "privacy.adaptive_clip=true")
    plan(small(*SEEDED, *keys[1:], "privacy.count_noise=3"))
    with pytest.raises(Refused, match="counts each client once"):
        plan(small(*SEEDED, *keys))
