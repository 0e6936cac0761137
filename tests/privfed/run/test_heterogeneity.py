"""Shifts and partitions, measures of how clients differ, and what rounds cost."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import Rounds, population, set_fields, trainer
from lanes import every_case
from scipy import stats
from small import model, same_run, small, trained

from privfed.cli.main import main
from privfed.client.objective import Sgd
from privfed.client.objectives.fedcurv import FedCurv
from privfed.client.objectives.feddane import FedDane
from privfed.client.objectives.mime import Mime
from privfed.client.objectives.personal.ifca import Ifca
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.data.partitions.basic import Iid, Natural, Shuffled
from privfed.data.partitions.label_skew import Dirichlet, LongTail, Pachinko
from privfed.data.partitions.shift import Concept, Covariate, _through
from privfed.grid.pictures.figures import Figure, check_figures
from privfed.models.losses.cross_entropy import BinaryCrossEntropy
from privfed.models.losses.squared_error import SquaredError
from privfed.plan.plan import plan
from privfed.report.plan import plan_table
from privfed.round.tally import Tally
from privfed.run.check import check
from privfed.run.evaluation.heterogeneity import (
    client_scores,
    distribution,
    gradients,
    measure_clients,
)
from privfed.run.population import load_population
from privfed.run.train import resume
from privfed.sampling.availability import Devices
from privfed.sampling.cohort import Population
from privfed.sampling.samplers import BySize
from privfed.store.run_directory import RunDirectory
from privfed.trained.personalise import _halves
from privfed.trained.stored_model import stored_model as evaluated

STREAMS = Streams(3)
CLASSES = 6


def labelled(count=6000, classes=CLASSES):
    y = torch.from_numpy(np.random.default_rng(0).integers(0, classes, count))
    return Examples(torch.arange(count).float()[:, None], y, classes)


def per_client(partition, examples, clients):
    """`[clients, classes]`"""
    owners = partition.owners(examples, clients, STREAMS)
    assert owners.shape == (len(examples),)
    table = np.zeros((clients, examples.classes), dtype=int)
    np.add.at(table, (owners, examples.y.numpy()), 1)
    return table


EVERY = [
    LongTail(ratio=30.0),
    Pachinko(coarse=[0, 0, 1, 1, 2, 2]),
    Dirichlet(concentration=0.1),
    Dirichlet(concentration=0.1, size_exponent=0.7),
    LongTail(size_exponent=1.0),
]


@every_case("partition", EVERY, ids=repr)
def test_every_example_is_given_away_once_in_equal_or_zipf_shares(partition):
    examples = labelled()
    table = per_client(partition, examples, 20)
    assert table.sum(0).tolist() == np.bincount(examples.y, minlength=CLASSES).tolist()
    sizes = np.sort(table.sum(1))[::-1]
    if partition.size_exponent:
        assert sizes[0] > 3 * sizes[-1]
    else:
        assert sizes[0] - sizes[-1] <= 1
    first, again = (partition.owners(examples, 20, Streams(8)) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, partition.owners(examples, 20, Streams(9)))


def entropy(table):
    shares = table / table.sum(1, keepdims=True)
    return float(stats.entropy(shares, axis=1).mean())


def test_dirichlet_tends_to_iid_and_to_one_label():
    examples, whole = labelled(), math.log(CLASSES)
    assert entropy(per_client(Dirichlet(concentration=1e6), examples, 20)) > 0.99 * whole
    assert entropy(per_client(Dirichlet(concentration=1e-4), examples, 20)) < 0.15 * whole
    sparse = per_client(Dirichlet(concentration=1e-4), labelled(9000, 10), 20)
    assert (sparse > 0).sum(1).max() <= 4, "a client whose label ran out takes one more, not all"
    assert entropy(per_client(Iid(), examples, 20)) > 0.99 * whole


def test_a_long_tail_has_its_ratio_and_an_order_per_client():
    table = per_client(LongTail(ratio=30.0), labelled(60_000), 20)
    sorted_shares = np.sort(table, axis=1)[:, ::-1].mean(0)
    wanted = 30.0 ** -(np.arange(CLASSES) / (CLASSES - 1))
    wanted *= sorted_shares.sum() / wanted.sum()
    early = np.sort(table, axis=1)[:, ::-1]
    assert np.median(early[:, 0] / np.maximum(early[:, -1], 1)) > 10
    assert sorted_shares[0] == pytest.approx(wanted[0], rel=0.25)
    first = per_client(LongTail(ratio=30.0, size_exponent=3.0), labelled(60_000), 50)
    middle = np.sort(first[np.argsort(first.sum(1))[-2]])[
        ::-1
    ]  # a client nobody stood in the way of
    assert middle[0] / middle[-1] == pytest.approx(30.0, rel=0.35)
    assert len(set(table.argmax(1).tolist())) > 2
    flat = per_client(LongTail(ratio=1.0), labelled(60_000), 20)
    assert entropy(flat) > 0.99 * math.log(CLASSES)


def test_pachinko_prefers_a_coarse_label_and_mixes_the_fine_ones_within():
    coarse = np.array([0, 0, 1, 1, 2, 2])
    partition = Pachinko(coarse=coarse.tolist(), concentration=0.02, fine_concentration=1e4)
    table = per_client(partition, labelled(60_000), 30)
    by_coarse = np.stack([table[:, coarse == c].sum(1) for c in range(3)], axis=1)
    top = by_coarse.argmax(1)
    rows = np.arange(30)
    mostly = by_coarse[rows, top] > 0.95 * table.sum(1)
    assert mostly.mean() > 0.7
    pairs = np.stack([table[k, coarse == top[k]] for k in rows[mostly]])
    shares = pairs[:, 0] / pairs.sum(1)
    assert np.median(np.abs(shares - 0.5)) < 0.03
    alone = Pachinko(coarse=coarse.tolist(), concentration=1e6, fine_concentration=1e-3)
    assert entropy(per_client(alone, labelled(60_000), 10)) < 0.85 * math.log(CLASSES)
    rng = np.random.default_rng(0)
    two = Pachinko(coarse=[0, 0, 1], concentration=1e6, fine_concentration=1e6)
    children = [np.array([0, 1]), np.array([2])]
    taken = sum(two._wish(rng, children)(np.array([1, 900, 900]), 100) for _ in range(200))
    assert taken[0] == 200, "the label of which one is left"
    assert taken[2] / taken.sum() == pytest.approx(0.5, abs=0.02), "its sibling makes up for it"
    with pytest.raises(Refused, match="name one coarse label for each"):
        Pachinko(coarse=[0, 1]).owners(labelled(), 5, STREAMS)


def test_shuffling_keeps_sizes_and_takes_heterogeneity_away():
    y = torch.arange(4).repeat_interleave(torch.tensor([100, 200, 300, 400]))
    own = Examples(torch.zeros(1000, 1), y, 4, owners=y.numpy())
    before, after = per_client(Natural(), own, 4), per_client(Shuffled(), own, 4)
    assert before.sum(1).tolist() == after.sum(1).tolist()
    assert entropy(before) == 0.0
    assert entropy(after) > 1.2
    with pytest.raises(Refused, match="does not state the owner"):
        Shuffled().owners(replace(own, owners=None), 4, STREAMS)


def test_a_concept_shift_swaps_two_labels_at_known_rounds_for_everybody_for_ever():
    federation = population((5, 30, 8))
    shifted = Concept(swaps=4, within=20).apply(federation, STREAMS)
    assert shifted.at(1) is shifted
    rounds = [round for round, _ in shifted.relabelled]
    assert rounds == sorted(set(rounds))
    assert all(2 <= round <= 20 for round in rounds)
    before = shifted
    for round in rounds:
        after = shifted.at(round)
        moved = (after.examples.y != before.examples.y).nonzero().flatten()
        touched = set(before.examples.y[moved].tolist()) | set(after.examples.y[moved].tolist())
        assert len(touched) == 2
        assert shifted.at(round) is after
        again = Concept(swaps=4, within=20).apply(federation, STREAMS).at(round)
        assert torch.equal(again.examples.y, after.examples.y), "not replayable"
        assert torch.equal(after.test.y, after.examples.y), "the test set moves along"
        before = after
    assert torch.equal(shifted.at(999).examples.y, before.examples.y)
    other = Concept(swaps=4, within=20).apply(federation, Streams(77))
    assert [round for round, _ in other.relabelled] != rounds
    with pytest.raises(Refused, match=r"lower data\.swaps, or raise"):
        Concept(swaps=5, within=5).apply(federation, STREAMS)
    few = replace(
        federation, examples=replace(federation.examples, y=federation.examples.y % 2, classes=2)
    )
    with pytest.raises(Refused, match="restores an earlier labelling"):
        Concept(swaps=2, within=20).apply(few, STREAMS)
    for seed in range(30):
        seen = [tuple(range(3))]
        many = Concept(swaps=4, within=20).apply(federation, Streams(seed)).relabelled
        seen += [tuple(labels.tolist()) for _, labels in many]
        assert len(set(seen)) == 5, "a labelling came back"
    numbers = replace(federation, examples=replace(federation.examples, y=torch.zeros(43, 1)))
    with pytest.raises(Refused, match="no class labels"):
        Concept().apply(numbers, STREAMS)


def labels_of(path):
    """The accuracy of the run's model on its test set, as labelled at its end, by hand."""
    directory = RunDirectory.open(path)
    config = directory.config.read()
    federation = load_population(config, Streams(config.run.seed))
    network, params, round = evaluated(path, federation.examples)
    outputs = network.outputs(params, federation.test.x).argmax(1)
    y = federation.test.y
    for start, labels in federation.relabelled:
        if start <= round:
            y = labels[federation.test.y]
    assert not torch.equal(y, federation.test.y)
    return float((outputs == y).float().mean())


def test_training_and_scoring_follow_the_shift_and_a_resume_does_too(tmp_path):
    settings = ["run.randomness=seeded", "data.shift=concept", "data.swaps=2", "data.within=4"]
    trained(tmp_path / "whole", *settings)
    trained(tmp_path / "part", *settings, "run.rounds=4")
    resume(tmp_path / "part", lambda stored: stored.with_run(rounds=7))
    same_run(tmp_path / "whole", tmp_path / "part")
    trained(tmp_path / "still", "run.randomness=seeded")
    check_run = json.loads((tmp_path / "whole/report/summary.json").read_text())
    lines = (tmp_path / "whole/metrics.jsonl").read_text().splitlines()
    scored = CliRunner().invoke(main, ["evaluate", str(tmp_path / "whole"), "--json"])
    wanted = labels_of(tmp_path / "whole")
    for measures in (check_run, json.loads(lines[-1]), json.loads(scored.stdout)):
        assert measures["accuracy"] == pytest.approx(wanted), "scored by labels that have moved on"
    moved = model(tmp_path / "whole")["model/1.weight"]
    assert not torch.equal(moved, model(tmp_path / "still")["model/1.weight"])


def images(count=40, shape=(1, 8, 8)):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, *shape, generator=generator)
    return Examples(x, torch.zeros(count, dtype=torch.int64), 2)


def test_each_clients_camera_is_its_own_and_the_same_for_all_its_images():
    one = images(1)
    same = one.take(np.zeros(40, dtype=np.int64))
    federation = Federation(same, np.arange(5) * 10, same)
    seen = Covariate().apply(federation, STREAMS).examples.x
    for client in range(4):
        block = seen[client * 10 : client * 10 + 10]
        assert torch.equal(block, block[:1].expand_as(block))
        assert not torch.allclose(block[0], seen[(client * 10 + 10) % 40], atol=1e-2)
    fewer = Federation(same.take(np.arange(20)), np.arange(3) * 10, same)
    assert torch.equal(Covariate().apply(fewer, STREAMS).examples.x, seen[:20])


def test_a_camera_turns_by_known_angles_and_scales_intensities():
    picture = images(1).x
    same = Examples(picture.expand(30, -1, -1, -1), torch.zeros(30, dtype=torch.int64), 2)
    federation = Federation(same, np.arange(31), same)
    still = Covariate(rotation=0.0, contrast=0.0, brightness=0.0).apply(federation, STREAMS)
    torch.testing.assert_close(still.examples.x, same.x.contiguous())
    bright = Covariate(rotation=0.0, contrast=0.0, brightness=0.4).apply(federation, STREAMS)
    offsets = (bright.examples.x - same.x).flatten(1)
    torch.testing.assert_close(offsets, offsets[:, :1].expand_as(offsets), atol=1e-5, rtol=0)
    assert 0.15 < float(offsets.abs().mean()) < 0.25
    assert float(offsets.abs().max()) <= 0.4 + 1e-5
    contrast = Covariate(rotation=0.0, contrast=0.5, brightness=0.0).apply(federation, STREAMS)
    ratios = (contrast.examples.x / same.x).flatten(1)
    torch.testing.assert_close(ratios, ratios[:, :1].expand_as(ratios), atol=1e-3, rtol=1e-3)
    turned = Covariate(rotation=90.0, contrast=0.0, brightness=0.0).apply(federation, STREAMS)
    means = turned.examples.x.flatten(1).mean(1)
    assert (means - float(picture.mean())).abs().max() < 0.15
    assert (turned.examples.x - same.x).abs().mean() > 0.1, "nothing was turned"
    assert (turned.test.x - same.x).abs().mean() > 0.1, "nor in the test set"
    assert not torch.allclose(turned.test.x, turned.examples.x, atol=1e-2)
    quarter = _through(picture, torch.tensor([[math.pi / 2, 1.0, 0.0]]))
    torch.testing.assert_close(quarter, picture.rot90(1, (2, 3)), atol=1e-4, rtol=1e-4)
    flat = Federation(
        replace(same, x=same.x.reshape(30, 64)),
        np.arange(31),
        replace(same, x=same.x.reshape(30, 64)),
    )
    wide = Covariate().apply(flat, STREAMS).examples.x
    torch.testing.assert_close(
        wide.view(30, 1, 8, 8), Covariate().apply(federation, STREAMS).examples.x
    )
    with pytest.raises(Refused, match="expected an image"):
        Covariate().apply(population((3, 4)), STREAMS)


def test_sampling_by_size_draws_in_proportion_and_is_refused_under_privacy():
    sizes = np.array([10, 20, 30, 40, 0, 1000])
    drawn = np.zeros(6)
    for round in range(3000):  # 12 clients are declared, and 6 there are
        drawn[
            BySize(size=4)
            .sample(round, 12, Population.of(sizes), Streams(1, simulated=True))
            .clients
        ] += 1
    wanted = np.minimum(4 / 12 * sizes / sizes.mean(), 1.0)
    for count, rate in zip(drawn, wanted, strict=True):
        assert stats.binomtest(int(count), 3000, rate).pvalue > 1e-6
    free = ["cohort.sampler=by_size", "privacy.mechanism=none"]
    with pytest.raises(Refused, match="is private data"):
        plan(small("cohort.sampler=by_size"))
    with pytest.raises(Refused, match="examples would count twice"):
        plan(small(*free))
    assert plan(small(*free, "aggregation.weights=uniform")).event.sampler == "by_size"
    scaffold = ["client.objective=scaffold", "data.setting=cross_silo"]
    with pytest.raises(Refused, match="needs the same sampling rate"):
        plan(small(*free, *scaffold))


def test_heterogeneity_and_dissimilarity_by_hand():
    federation = population((3, 9, 0, 4))
    local = trainer(federation)
    params = local.network.initial_params + 0.1
    sizes = np.array([3, 9, 4]) / 16
    rows = []
    for start, end in ((0, 3), (3, 12), (12, 16)):
        leaf = params.clone().requires_grad_()
        x, y = federation.examples.x[start:end], federation.examples.y[start:end]
        local.network.losses(leaf, x, y).mean().backward()
        rows.append(leaf.grad.double().numpy())
    mean = (sizes[:, None] * np.stack(rows)).sum(0)
    gamma = math.sqrt(sum(p * ((g - mean) ** 2).sum() for p, g in zip(sizes, rows, strict=True)))
    squares = sum(p * (g**2).sum() for p, g in zip(sizes, rows, strict=True))
    facts = gradients(local, params, np.array([0, 1, 3]))
    assert facts["heterogeneity"] == pytest.approx(gamma, rel=1e-4)
    assert facts["dissimilarity"] == pytest.approx(math.sqrt(squares / (mean**2).sum()), rel=1e-4)


def test_equal_clients_are_not_dissimilar():
    one = population((6,)).examples
    same = Federation(one.take(np.tile(np.arange(6), 4)), np.arange(5) * 6, one)
    local = trainer(same)
    facts = gradients(local, local.network.initial_params, np.arange(4))
    assert facts["heterogeneity"] < 1e-3
    assert facts["dissimilarity"] == pytest.approx(1.0, abs=1e-5)


def test_a_distribution_over_clients_by_hand():
    scores = np.array([0.5] * 10 + [1.0] * 8 + [0.0, 0.2])
    statistics = distribution(scores)
    assert statistics["mean"] == pytest.approx(0.66)
    assert statistics["worst_decile"] == pytest.approx(0.1)
    assert statistics["worst"] == 0.0
    assert statistics["variance"] == pytest.approx(scores.var())
    errors = distribution(scores, lower_is_better=True)
    assert (errors["worst"], errors["worst_decile"]) == (1.0, 1.0)


def test_each_client_is_scored_on_its_own_examples():
    federation = population((3, 9, 4))
    local = trainer(federation)
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(len(local.network.initial_params), generator=generator)
    name, scores = client_scores(local.network, federation, params, np.arange(3))
    assert name == "accuracy"
    right = local.network.outputs(params, federation.examples.x).argmax(1) == federation.examples.y
    assert scores == pytest.approx([float(part.float().mean()) for part in right.split([3, 9, 4])])
    named = measure_clients(local, params)
    assert named["client_accuracy_mean"] == pytest.approx(scores.mean())
    whole = float(local.network.losses(params, federation.examples.x, federation.examples.y).mean())
    assert named["train_loss"] == pytest.approx(whole, rel=1e-5)


def test_the_round_time_model_by_hand():
    """10 MB down at 0.75 MB/s, 5 MB up at 0.25 MB/s, 100 steps of 0.02 s slowed by 7, 10 s more."""
    devices = Devices(step_seconds=0.02)
    wanted = 10 / 0.75 + 5 / 0.25 + 7 * 2.0 + 10
    assert devices.seconds(10e6, 5e6, 100) == pytest.approx(wanted)
    assert Devices(server_seconds=3.0).seconds(0, 0, 0) == pytest.approx(13.0)


def test_a_tally_adds_up_until_it_is_asked():
    def work(round, ids):
        return ids + round, 10 * ids

    tally = Tally(1.0, {}, work, Devices(overhead=0.0, slowdown=1.0, step_seconds=1.0), 75.0, 25.0)
    nobody = np.zeros(2, dtype=bool)
    tally.rows(1, np.array([1, 2]), torch.tensor([[3.0], [0.5]]), nobody)
    tally.rows(1, np.array([5]), torch.tensor([[math.nan]]), nobody[:1])
    counts = tally.take()
    assert (counts["cohort"], counts["clipped"], counts["not_finite"]) == (3, 1, 1)
    tally.rows(2, np.array([1]), torch.tensor([[3.0]]), nobody[:1])
    tally.take()
    totals = tally.totals()
    assert totals["examples"] == 90
    assert totals["bytes"] == 4 * 100
    network = 2 * (75 / 0.75e6 + 25 / 0.25e6)
    assert totals["device_seconds"] == pytest.approx(6 + 3 + network)
    assert tally.totals()["examples"] == 0


@every_case(
    "objective, passes",
    [(Sgd(), 2), (FedDane(), 4), (Mime(), 5), (FedCurv(), 3), (Ifca(clusters=3), 5)],
)
def test_work_counts_epochs_and_every_gradient(tmp_path, objective, passes):
    rounds = Rounds(tmp_path, (3, 9, 4), objective=objective, size=3)
    steps, examples = rounds.world.executor.work(1, np.arange(3))
    assert examples.tolist() == [3 * passes, 9 * passes, 4 * passes]
    assert steps.tolist() == [passes, 3 * passes, passes]


@pytest.mark.parametrize(
    "keys, says", [((), "sgd x 2 epochs at"), (("client.steps=1",), "epochs (at most 1 steps) at")]
)
def test_a_plan_says_how_far_clients_train(keys, says):
    checked = check(small("data.size_mean=3.0", "client.batch_size=2", *keys))
    table = plan_table(checked.plan, checked.forecast, None)
    assert any(says in str(cell) for cell in table.columns[1].cells)


def test_work_counts_the_steps_that_are_taken(tmp_path):
    """At most three of 2 + 2, 5 + 5 and 2 + 2, of at most two examples each; Mime's twice."""
    for objective, twice, beside in ((Sgd(), 1, 0), (Mime(), 2, 1)):
        rounds = Rounds(tmp_path / str(twice), (3, 9, 4), objective=objective, size=3)
        set_fields(rounds.local, batch_size=2, most_steps=3)
        steps, examples = rounds.world.executor.work(1, np.arange(3))
        assert steps.tolist() == [3 * twice + beside * each for each in (2, 5, 2)]
        assert examples.tolist() == [
            taken * twice + beside * size for taken, size in ((5, 3), (6, 9), (6, 4))
        ]


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_what_a_round_took_is_counted_under_every_rule_and_its_bytes_per_client(tmp_path, rule):
    outcome = trained(
        tmp_path / rule, "run.simulation_metrics=true", "privacy.mechanism=none",
        f"aggregation.rule={rule}", "aggregation.weights=uniform", "run.evaluate_every=1",
    )  # fmt: skip
    lines = [json.loads(line) for line in (outcome.path / "metrics.jsonl").read_text().splitlines()]
    facts = [line["simulation_only"] for line in lines]
    per_client = {f["bytes"] / f["cohort"] for f in facts if f["cohort"]}
    d = sum(t.numel() for n, t in model(outcome.path).items() if n.startswith("model/"))
    assert per_client == {4.0 * (2 * d + 1)}
    assert sum(f["examples"] for f in facts) > 0


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_a_client_asked_twice_in_a_round_is_counted_once(tmp_path, rule):
    outcome = trained(
        tmp_path, "run.simulation_metrics=true", "run.evaluate_every=1", "client.objective=mime",
        "privacy.mechanism=none", f"aggregation.rule={rule}", "cohort.size=12",
    )  # fmt: skip
    lines = [json.loads(line) for line in (outcome.path / "metrics.jsonl").read_text().splitlines()]
    assert {line["simulation_only"]["cohort"] for line in lines} == {12}


def test_a_clip_that_moves_is_not_counted_by_the_first_one(tmp_path):
    settings = ["run.simulation_metrics=true", "run.evaluate_every=1", "privacy.count_noise=9"]
    fixed = trained(tmp_path / "a", *settings)
    moving = trained(tmp_path / "b", *settings, "privacy.adaptive_clip=true")
    facts = [
        json.loads((run.path / "metrics.jsonl").read_text().splitlines()[0])["simulation_only"]
        for run in (fixed, moving)
    ]
    assert "clipped" in facts[0]
    assert "clipped" not in facts[1]


def test_work_that_a_resume_would_lose_is_refused():
    with pytest.raises(Refused, match=r"a multiple of run\.evaluate_every"):
        plan(small("run.simulation_metrics=true"))
    plan(small("run.simulation_metrics=true", "run.checkpoint_every=4"))


def test_one_class_is_enough_to_score_a_client():
    loss = BinaryCrossEntropy()
    kept = torch.tensor([[2.0, 1.0], [-1.0, 1.0]])
    assert loss.client_measure(kept) == ("accuracy", 0.5)
    assert SquaredError.lower_is_better
    assert not loss.lower_is_better


def test_a_half_is_tuned_on_and_the_other_scored():
    federation = population((5, 1, 8))
    tuning, scoring = _halves(federation, STREAMS)
    assert tuning.sizes(np.arange(3)).tolist() == [3, 1, 4]
    assert scoring.sizes(np.arange(3)).tolist() == [2, 0, 4]
    for client in range(3):
        start, end = federation.offsets[client : client + 2]
        own = {tuple(row) for row in federation.examples.x[start:end].tolist()}
        halves = [
            {
                tuple(row)
                for row in side.examples.x[slice(*side.offsets[client : client + 2])].tolist()
            }
            for side in (tuning, scoring)
        ]
        assert halves[0] | halves[1] == own
        assert not halves[0] & halves[1]


def test_log_is_for_progress_only():
    with pytest.raises(Refused, match="and not a run's progress"):
        check_figures([Figure(name="a", x="client.lr", log=True)], {"client.lr": [0.1, 0.2]})


GRID = """
base = "base.toml"
seeds = [0, 1]
[grid]
"client.epochs" = [1, 3]
[[figure]]
name = "work"
x = "examples"
by = "client.epochs"
[[figure]]
name = "differ"
x = "device_seconds"
by = "client.epochs"
measure = "dissimilarity"
"""


@pytest.mark.slow
def test_a_study_draws_over_work_and_time_and_tells_best_and_late(tmp_path, monkeypatch):
    from grids import BASE, in_process, table, write

    from privfed.grid import engine as experiment

    monkeypatch.setattr(experiment, "work", in_process)
    base = BASE.replace(
        "[run]", "[run]\nsimulation_metrics = true\nclient_measures = true\ncheckpoint_every = 4"
    )
    path = write(tmp_path, GRID, base)
    result = CliRunner().invoke(main, ["experiment", str(path), "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "work.svg").exists()
    assert "examples" in (tmp_path / "work.svg").read_text()
    rounds = (tmp_path / "grid.rounds.csv").read_text().splitlines()
    assert len(rounds) == 1 + 4 * 2
    for row in table(path):
        assert float(row["accuracy_best"]) >= float(row["accuracy"])
        folder = tmp_path / "cells" / row["cell"] / "run"
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        processed = sum(line["simulation_only"]["examples"] for line in lines)
        assert float(row["examples"]) == processed > 0
        seen = [line["accuracy"] for line in lines]
        assert float(row["accuracy_best"]) == max(seen)
        assert row["accuracy_last_100"] == "", "there are not a hundred rounds"
        assert float(row["client_accuracy_worst"]) <= float(row["client_accuracy_mean"])
    plain = write(tmp_path / "plain", GRID, BASE)
    refused = CliRunner().invoke(main, ["experiment", str(plain), "--jobs", "1"])
    assert refused.exit_code == 2
    assert "run.simulation_metrics" in " ".join(refused.output.split())


def test_methods_are_compared_on_the_same_start_cohorts_and_batches(tmp_path):
    """A server that stands still makes round 1 of every method the same question."""
    seen = {}
    for name in ("fedavg", "fedadam"):
        path = tmp_path / name
        outcome = trained(
            path, "run.randomness=seeded", f"server.optimizer={name}", "server.lr=0",
            "run.simulation_metrics=true", "privacy.clip=1000", "run.evaluate_every=1",
        )  # fmt: skip
        lines = (outcome.path / "metrics.jsonl").read_text().splitlines()
        facts = [json.loads(line)["simulation_only"] for line in lines]
        seen[name] = [(f["cohort"], f["median_norm"], f["examples"]) for f in facts]
    assert seen["fedavg"] == seen["fedadam"]
    assert len(set(seen["fedavg"])) > 3


def test_fine_tuning_helps_clients_with_a_world_of_their_own(tmp_path):
    trained(tmp_path / "run", "privacy.mechanism=none", "data.size_min=30", "client.lr=0.1")
    run = CliRunner().invoke(
        main, ["evaluate", str(tmp_path / "run"), "--personalise", "20", "--json"]
    )
    assert run.exit_code == 0, run.output
    printed = json.loads(run.stdout)
    assert printed["simulation"] is True
    assert printed["clients"] == 12
    assert printed["after"]["mean"] > printed["before"]["mean"] + 0.05
    shown = CliRunner().invoke(main, ["evaluate", str(tmp_path / "run"), "--personalise", "2"])
    assert "worst decile" in shown.output
    assert "no ε covers" in " ".join(shown.output.split())
    both = CliRunner().invoke(
        main, ["evaluate", str(tmp_path / "run"), "--personalise", "2", "--data", "x"]
    )
    assert both.exit_code == 2
