"""Learning rates and clips that are "auto": chosen once, without private data, and recorded."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small import small
from torch import nn

import privfed
from experiments.first_run import networks
from privfed.config.catalog import schema
from privfed.config.reading import overridden, read_resolved
from privfed.core.errors import Refused
from privfed.run import rates
from privfed.run.check import check
from privfed.run.prepare import prepare
from privfed.run.train import allowed_change

SET = ("client.lr=0.1", "privacy.clip=0.3")
NETWORK = ("model.name=mlp", "model.hidden=[8]", "run.randomness=seeded")


def people(seed=0, clients=12, scale=1.0):
    generator = np.random.default_rng(seed)
    x = scale * generator.uniform(-1, 1, (clients * 10, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return {str(n): (x[10 * n : 10 * n + 10], y[10 * n : 10 * n + 10]) for n in range(clients)}


def arrays(mapping, **keys):
    x, y = people(99)["3"]
    for other in range(4, 12):
        x, y = (np.concatenate(pair) for pair in zip((x, y), people(99)[str(other)], strict=True))
    return privfed.Arrays(
        mapping, clients=12, shape=(5,), bounds=(-1, 1), classes=2, **{"test": (x, y), **keys}
    )


def trained(mapping, model="mlp", **keys):
    sections = {"run": {"randomness": "seeded"}, "cohort": {"size": 6}} | keys
    return privfed.train(arrays(mapping), model=model, rounds=4, temporary=True, **sections)


def test_a_network_gets_both_and_config_toml_records_from_what():
    config = trained(people()).config
    assert config.open == ()
    rate, clip = config.client.lr, config.mechanism.clip
    assert config.auto == (
        f"client.lr = {rate:g} and privacy.clip = {clip:g}: chosen from 90 public test examples"
    )
    assert rate in rates.RATES
    again = read_resolved(config.toml(), given=config.given)
    assert (again.auto, again.client.lr, again.open) == (config.auto, config.client.lr, ())


def test_no_client_has_any_effect_on_what_is_chosen():
    chosen = [
        (run.config.client.lr, run.config.mechanism.clip)
        for run in (trained(people()), trained(people(7, scale=0.01)))
    ]
    assert chosen[0] == chosen[1]


def test_a_public_test_set_has_one():
    flipped = arrays(people(), test=(np.zeros((90, 5), np.float32), np.arange(90) % 2))
    sections = {"run": {"randomness": "seeded"}, "cohort": {"size": 6}}
    run = privfed.train(flipped, model="mlp", rounds=4, temporary=True, **sections)
    assert run.config.client.lr != trained(people()).config.client.lr


@pytest.mark.parametrize("keys", [{"data.holdout": "examples"}, {"data.holdout": "none"}])
def test_clients_examples_and_too_few_are_not_public(keys):
    asked = [f"{key}={value}" for key, value in keys.items()]
    if keys["data.holdout"] == "none":
        population = arrays(people(), test=None, holdout="none")
        evaluated = {"evaluation": {"by": "clients", "every": 2}, "cohort": {"size": 6}}
        config = privfed.train(
            population, model="mlp", rounds=4, temporary=True, **evaluated
        ).config
    else:
        config = prepare(small(*NETWORK, *asked)).plan.config
    assert config.auto.endswith("chosen from synthetic examples")
    assert 0 < config.client.lr <= 2


def test_what_is_set_stays_and_the_other_is_chosen():
    config = trained(people(), client={"lr": 0.123}).config
    assert config.client.lr == 0.123
    assert config.auto.startswith("privacy.clip = 0")
    config = trained(people(), privacy={"mechanism": "none"}).config
    assert config.auto.startswith("client.lr = ")


def test_noise_that_sites_share_is_calibrated_to_the_chosen_clip():
    """Its encoding, and so its cost, depends on the clip: else the last round may exceed ε."""
    keys = ("data.sites=3", "privacy.mechanism=discrete_gaussian", "secure.protocol=masks")
    keys = (*NETWORK, *keys, "privacy.epsilon=3", "client.lr=0.1")
    chosen = prepare(small(*keys, "privacy.clip=auto")).plan
    clip = chosen.config.mechanism.clip
    assert clip != small(*keys, "model.name=logistic").mechanism.clip
    fixed = prepare(small(*keys, f"privacy.clip={clip}")).plan
    assert chosen.noise_multiplier == fixed.noise_multiplier
    assert chosen.guarantee.epsilon <= 3


def test_a_linear_model_has_recommendations_unless_asked():
    assert small().open == ()
    assert small("client.lr=auto").open == ("client.lr",)
    config = prepare(small("client.lr=auto", "run.randomness=seeded")).plan.config
    assert config.auto.startswith("client.lr = ")


def test_check_says_that_they_are_chosen_later_and_a_run_what_they_are():
    from privfed.report.plan import plan_table

    checked = check(small(*NETWORK, "privacy.clip=auto"))
    cells = map(str, plan_table(*checked.facts).columns[1].cells)
    assert any("client.lr and privacy.clip: chosen when the run starts" in cell for cell in cells)
    assert checked.plan.config.values()["client"]["lr"] == "auto"


def test_a_resumed_run_keeps_them():
    stored = prepare(small(*NETWORK)).plan.config
    wanted = allowed_change(stored, overridden(stored, ["client.lr=auto", "privacy.clip=auto"]))
    assert wanted.values() == stored.values()


def test_sites_of_their_own_approve_numbers():
    with pytest.raises(Refused, match=r"client\.lr is .auto., but with data\.site_partition"):
        small("client.lr=auto", "data.sites=3", "data.site_partition=elsewhere")


class Steep(nn.Module):
    """A network on inputs a hundred times too large: large learning rates diverge."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(100 * x)


def test_a_rate_at_which_training_diverges_is_not_chosen():
    torch.manual_seed(0)
    run = trained(people(), Steep(), privacy={"mechanism": "none"})
    assert run.config.client.lr <= 0.05
    assert run.summary["loss"] < 2 * run.summary["constant"]["loss"]


class Trials:
    """Simulated runs whose loss is least at one clip; they note the noise of each."""

    def __init__(self, setup, best):
        self.clipped, self.best, self.noises = setup, best, []

    def norm(self, rate):
        return 2.0

    def loss(self, rate, mechanism):
        self.noises.append((mechanism.clip, mechanism.noise_multiplier))
        return abs(math.log(mechanism.clip / self.best))


def test_rounds_and_noise_of_simulated_runs_stand_for_those_of_the_run():
    """Over R rounds, R clip and sqrt(R) z clip / m are T clip and sqrt(T) z clip / m of the run."""
    setup = prepare(small(*NETWORK, "run.rounds=24", *SET))
    plan, cohort = setup.plan, 5
    trials = Trials(prepare(small(*NETWORK, "run.rounds=6", *SET)), best=1.0)
    assert rates._clip(plan, trials, 0.1, cohort, print) == pytest.approx(1.0 * 6 / 24)
    z, m = plan.noise_multiplier, plan.config.sampler.size
    for clip, noise in trials.noises:
        in_run = math.sqrt(24) * z * (clip * 6 / 24) / m
        assert math.sqrt(6) * noise * clip / cohort == pytest.approx(in_run)
    assert [clip for clip, _ in trials.noises] == [2.0 * each for each in rates.CLIPS]


def test_nearly_the_best_is_good_enough_and_no_better_one_keeps_the_recommendation():
    assert rates._rate({2.0: 0.5, 1.0: 0.51, 0.5: 0.9}, 1.0, 0.95, 0.3) == 1.0
    assert rates._rate({2.0: 0.5, 1.0: 0.6, 0.5: 0.9}, 1.0, 0.95, 0.3) == 2.0
    assert rates._rate({2.0: math.inf, 1.0: 1.2}, 1.0, 0.95, 0.3) == 0.3
    with pytest.raises(Refused, match=r"diverges at every learning rate from 1 to 2; .*set client"):
        rates._rate({2.0: math.inf, 1.0: math.inf}, 1.0, 0.95, 0.3)
    assert rates._best({2.0: math.inf}, 0.3) == 0.3


def test_of_rare_labels_a_rate_has_to_gain_more_than_a_bias_does():
    losses = {2.0: 0.014, 0.5: 0.041, 0.2: 0.042, 0.02: 0.055, 0.005: 0.19}
    assert rates._rate(losses, 0.62, 0.051, 0.5) == 2.0
    assert rates._rate(losses, 0.62, 0.010, 0.5) == 0.5  # none beats a constant: no small rate


def test_large_models_get_short_trials_and_short_runs_no_longer_ones():
    plan = prepare(small(*NETWORK)).plan
    population = rates._population(*_public(6), plan.config)
    assert rates._size(plan.config, population, 100) == (plan.config.run.rounds, 6)
    long = replace(plan.config, run=plan.config.run.model_copy(update={"rounds": 100}))
    assert rates._size(long, population, 100) == (30, 6)
    assert rates._size(long, population, 10**9) == (15, 4)


def _public(clients):
    """Examples for `clients` simulated clients of five, and the population of a plan."""
    federation = prepare(small(*NETWORK, "client.lr=0.1", "privacy.clip=0.3")).federation
    test = federation.test
    return test.take(np.arange(5 * clients) % len(test)), replace(federation, typical=5.0)


def test_the_page_of_the_study_shows_the_stored_results():
    page = (Path(networks.__file__).parent / "README.md").read_text("utf-8")
    results = list(networks.read().values())
    assert networks.table(results) in page
    for sentence in networks.short(results):
        assert sentence in page


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [math.inf, 8.0])
def test_a_network_of_the_study_learns_with_nothing_set(epsilon):
    result = networks.trained("MLP", epsilon, 0, "auto", rounds=40)
    assert result.gain > (0.2 if epsilon < math.inf else 0.4)


def test_auto_is_named_where_a_value_is_refused_and_accepted_by_the_schema():
    with pytest.raises(Refused, match=r"client\.lr is 'fast'; expected a number .*, or 'auto'"):
        small("client.lr=fast")
    keys = schema()["properties"]["client"]["properties"]["lr"]
    assert {"const": "auto"} in keys["anyOf"]
    assert {"type": "number", "minimum": 0} in keys["anyOf"]
    with pytest.raises(Refused) as refused:
        small("privacy.mechanism=none", "privacy.clip=auto")
    assert "did you mean" not in str(refused.value)
