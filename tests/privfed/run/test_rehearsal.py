"""A rehearsal is the run itself, on other people or with other coins."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from lanes import every_case
from small import model, small, trained

from privfed.core.errors import Refused
from privfed.run.prepare import prepare
from privfed.run.rehearsal import keeping, rehearse


def setup(*overrides):
    return prepare(small(*overrides))


@every_case(
    "overrides",
    [
        (),
        ("privacy.mechanism=none", "client.objective=scaffold", "data.setting=cross_silo"),
        (
            "privacy.mechanism=banded",
            "cohort.sampler=cyclic",
            "cohort.size=0",
            "cohort.separation=3",
            "privacy.bands=2",
        ),
    ],
)
def test_a_rehearsal_of_a_seeded_run_ends_as_that_run(tmp_path, overrides):
    trained(tmp_path / "r", "run.randomness=seeded", "run.seed=5", *overrides)
    whole = setup("run.seed=5", *overrides)
    ends = rehearse(whole, whole.federation, 5).params
    expected = whole.network.shapes.flatten_exactly(
        {
            name.removeprefix("model/"): tensor
            for name, tensor in model(tmp_path / "r").items()
            if name.startswith("model/")
        }
    )
    assert torch.equal(ends, expected)
    assert not torch.equal(ends, rehearse(whole, whole.federation, 6).params)
    fewer = rehearse(whole, whole.federation, 5, rounds=6).params
    assert not torch.equal(ends, fewer)


@pytest.mark.parametrize("mechanism", ["gaussian", "none"])
def test_a_client_without_its_examples_is_as_absent_as_one_who_is_not_there(mechanism):
    private = ("privacy.noise_multiplier=0.5",) if mechanism == "gaussian" else ()
    whole = setup(f"privacy.mechanism={mechanism}", *private)
    population = whole.federation
    last = int(population.offsets[-2])
    kept = np.arange(len(population.examples)) < last
    empty = keeping(population, kept)
    absent = replace(empty, offsets=empty.offsets[:-1])
    assert (empty.clients, absent.clients) == (12, 11)
    without = [rehearse(whole, those, 3).params for those in (empty, absent)]
    torch.testing.assert_close(*without, rtol=0, atol=1e-6)
    assert (rehearse(whole, population, 3).params - without[0]).abs().max() > 1e-3


def test_keeping_some_examples_keeps_each_with_its_owner():
    population = setup().federation
    kept = np.arange(len(population.examples)) % 3 == 0
    some = keeping(population, kept)
    owners = np.repeat(np.arange(population.clients), np.diff(population.offsets))
    for client in range(population.clients):
        start, end = some.offsets[client], some.offsets[client + 1]
        mine = population.examples.x[torch.from_numpy(kept & (owners == client))]
        assert torch.equal(some.examples.x[start:end], mine)


def test_simulated_attackers_are_refused():
    whole = setup("attack.name=sign_flip", "attack.fraction=0.25")
    with pytest.raises(Refused, match=r"attack\.fraction = 0"):
        rehearse(whole, whole.federation, 0)
