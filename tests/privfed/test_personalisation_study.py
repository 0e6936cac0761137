"""The study of personalisation: its clients, its memory, its scores, and its page's tables."""

import itertools
from math import inf

import numpy as np
import pytest
import torch
from helpers import DATA
from lanes import mostly_slow

from experiments.personalisation.cases import (
    ARMS,
    EPSILONS,
    FINE_TUNED,
    HERE,
    METHODS,
    SEEDS,
    SETTINGS,
    SINGLE_PROCESS,
    TUNING_SEED,
    Adaptation,
    configured,
)
from experiments.personalisation.models import InMemory, accuracies, ended, untrained
from experiments.personalisation.records import Record, append, read
from experiments.personalisation.small_images import SmallImages, TwoReadings
from experiments.personalisation.study import best
from experiments.personalisation.tables import tables
from privfed.client.client_states import ClientStates
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.run.train import train
from privfed.trained.kept_models import score_kept_models

MNIST = DATA / "mnist"
TUNING, RESULTS = read(HERE / "tuning.csv"), read(HERE / "results.csv")
SMALL = ("data.clients=40", "cohort.size=20", "run.rounds=3", "evaluation.holdout=0.5")
with_images = pytest.mark.skipif(not MNIST.exists(), reason="MNIST's images are not at hand")


def small(setting, arm, *changes):
    path = f'data.path="{MNIST}"'
    return configured(setting, arm, inf, 0, ("client.lr=0.3",), path, *SMALL, *changes)


@with_images
def test_every_other_client_reads_a_digit_as_another():
    streams = Streams(0, simulated=True)
    plain, read_twice = (
        source(path=str(MNIST)).load(40, streams) for source in (SmallImages, TwoReadings)
    )
    assert plain.x.shape == (10_000, 49)
    assert torch.equal(plain.x, read_twice.x)
    further = (read_twice.y - plain.y) % 10
    assert torch.equal(further, torch.from_numpy(read_twice.owners % 2 * 5))
    assert set(np.bincount(read_twice.owners)) == {250}


def test_accuracies_are_each_clients_by_its_own_model():
    class Right:
        """A network that answers with the class which its model names."""

        def stacked_outputs(self, rows, x):
            classes = torch.nn.functional.one_hot(rows[:, 0].long(), 3)
            return classes[:, None].expand(-1, x.shape[1], -1).float()

    y = torch.tensor([0, 0, 1, 2, 2, 2, 0])
    examples = Examples(torch.zeros(7, 2), y, 3)
    population = Federation(examples, np.array([0, 3, 7]), examples)
    assert accuracies(Right(), population, torch.tensor([[0.0], [2.0]])) == pytest.approx(
        [2 / 3, 3 / 4]
    )
    assert accuracies(Right(), population, torch.tensor([[0.0]])) == pytest.approx([2 / 3, 1 / 4])


def test_memory_is_what_the_engine_keeps(tmp_path):
    ours, kept = InMemory.empty(5, 2), ClientStates(tmp_path / "states", "run", 5, 2, 0)
    generator = torch.Generator().manual_seed(0)
    for round, ids in enumerate(([0, 3], [3, 4], [1]), 1):
        values = torch.randn(len(ids), 2, generator=generator)
        for states in (ours, kept):
            states.begin(round)
            states.scatter(np.array(ids), values)
            states.keep()
    for states in (ours, kept):  # what was scattered in a round that is thrown away is forgotten
        states.begin(4)
        states.scatter(np.array([2]), torch.ones(1, 2))
        states.discard()
    everybody, unseen = np.arange(5), torch.tensor([7.0, 8.0])
    for mine, theirs in zip(
        ours.gather(everybody, unseen), kept.gather(everybody, unseen), strict=True
    ):
        assert torch.equal(mine, theirs)


@with_images
@pytest.mark.parametrize("arm", mostly_slow(["FedPer", "Ditto", "APFL", "IFCA"], "FedPer"))
def test_models_of_their_own_score_as_the_engine_scores_them(arm, tmp_path):
    """But for the last round, in which the engine's clients evaluate: here one trains for it."""
    by_clients = ("run.rounds=4", 'evaluation.by="clients"', "evaluation.every=4")
    train(small("two readings", arm, *by_clients), tmp_path / "run")
    scored = score_kept_models(tmp_path / "run")
    run = ended(small("two readings", arm))
    assert run.personal().mean() == pytest.approx(scored.after["mean"])
    assert run.shared().mean() == pytest.approx(scored.before["mean"])


@with_images
def test_clients_train_on_nothing_that_they_score_on():
    start = untrained(small("Dirichlet 0.1", SINGLE_PROCESS))
    training, held_back = start.setup.executor.trainer.federation, start.held_back
    assert len(training.examples) == len(held_back.examples) == 5_000
    before = start.shared()
    after = start.adapted(Adaptation(0.1, 5))
    assert after.mean() > before.mean() + 0.2


def test_what_is_tried_is_as_much_for_every_method():
    alike = {name: method for name, method in METHODS.items() if not method.options[1:]}
    assert {len(list(method.combinations(8.0))) for method in alike.values()} == {4}
    others = METHODS.keys() - alike.keys()
    assert {len(list(METHODS[name].combinations(8.0))) for name in others} == {8}
    assert TUNING_SEED not in SEEDS


def test_what_is_written_is_read(tmp_path):
    append(tmp_path / "results.csv", RESULTS[:3])
    append(tmp_path / "results.csv", RESULTS[3:])
    assert read(tmp_path / "results.csv") == RESULTS
    assert read(tmp_path / "nothing.csv") == []


def test_every_run_is_in_the_table_with_what_the_tuning_seed_chose():
    settings = {record.setting for record in RESULTS}
    assert settings <= set(SETTINGS)
    keys = [record.key[:4] for record in RESULTS]
    expected = [
        (setting, arm, epsilon, seed)
        for setting, arm, seed in itertools.product(settings, ARMS, SEEDS)
        for epsilon in ((inf,) if arm == SINGLE_PROCESS else EPSILONS)
    ]
    assert sorted(keys) == sorted(expected)
    for record in RESULTS:
        chosen = best(TUNING, record.setting, record.arm, record.epsilon)
        assert (record.chosen, record.adaptation) == (chosen.chosen, chosen.adaptation)


def test_the_best_is_the_best_of_its_own():
    def tried(arm, chosen, mean):
        return Record("s", arm, 8.0, TUNING_SEED, chosen, "", mean, 0.0)

    records = [tried("Ditto", "a=1", 0.5), tried("Ditto", "a=2", 0.6), tried(FINE_TUNED, "", 0.9)]
    assert best(records, "s", "Ditto", 8.0).chosen == "a=2"


def test_the_page_shows_what_the_tables_say():
    page = (HERE / "README.md").read_text("utf-8")
    for lines in tables(TUNING, RESULTS).split("\n\n"):
        assert lines in page
