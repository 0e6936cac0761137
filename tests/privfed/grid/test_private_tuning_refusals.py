"""What a private tuning refuses: before it is charged, with what would work."""

from dataclasses import replace

import pytest
from grids import write
from lanes import every_case
from private_tunings import BUDGET, TUNED, proposed, tuned

from accounting.choosing.repetitions import Repetitions
from privfed.config.assembly import assembled
from privfed.config.overrides import assign
from privfed.config.reading import read_raw
from privfed.config.resolved import Chosen
from privfed.core.errors import Refused
from privfed.grid.load import load_grid
from privfed.plan.refusals.run_file import choice_refusals

REFUSED = {
    "no noise": ('mechanism = "none"', "", "have no noise"),
    "infinite": ("epsilon = inf", "", "have no noise"),
    "noise of zero": ("noise_multiplier = 0.0", "", "no accountant has a finite bound"),
    "other rounds": ("", '"run.rounds" = [4, 5]', "need the same spending"),
    "other cohort": ("", '"cohort.size" = [4, 5]', "need the same spending"),
    "other people": ("", '"data.size_mean" = [1.0, 2.0]', "need the same spending"),
    "a key that is none": ("", '"client.rate" = [1.0]', "client"),
    "a run that is refused": ("", '"client.lr" = [-1.0]', "client.lr"),
}


@every_case("keys, over, why", REFUSED.values(), ids=REFUSED)
def test_what_has_no_proof_is_refused_before_it_is_charged(tmp_path, keys, over, why):
    grid = TUNED if not over else TUNED[: TUNED.index('"client.lr"')] + over
    base = BUDGET.replace("epsilon = 4.0", keys) if keys else BUDGET
    with pytest.raises(Refused, match=why):
        tuned(write(tmp_path, grid, base))
    assert not (tmp_path / "tuning.jsonl").exists()


@every_case(
    "section, why",
    [
        ('[data]\nholdout = "examples"\n', "holdout"),
        ('[run]\nheads = "heads.jsonl"\n', "run.heads"),
        ('[run]\nwatch = ["csv"]\n', "run.watch"),
        ("[audit]\ncanaries = 30\n", "canaries"),
        ('[secure]\nprotocol = "masks"\n[privacy]\nmechanism = "skellam"\n', "second guarantee"),
        ('[privacy]\nmechanism = "local_gaussian"\n', "see the messages of all other candidates"),
        (
            '[cohort]\nsampler = "full"\nsize = 0\n[privacy]\nmechanism = "pairwise_gaussian"\n',
            "see the messages of all other candidates",
        ),
        ("[client.privacy]\nmechanism = 'dp_sgd'\nnoise_multiplier = 1.0\n", "examples of silos"),
    ],
    ids=["members", "heads", "watchers", "canaries", "shared", "local", "pairs", "silos"],
)
def test_what_the_charge_leaves_out_is_refused(tmp_path, section, why):
    write(tmp_path, TUNED, BUDGET)
    (tmp_path / "further.toml").write_text(section)
    raw = read_raw(tmp_path / "base.toml")
    for name, keys in read_raw(tmp_path / "further.toml").items():
        for key, value in keys.items():
            assign(raw, f"{name}.{key}", value)
    config = assembled(raw)
    assert not [*choice_refusals(config)]
    config = replace(config, chosen=Chosen(Repetitions.with_mean(1.0, 4.0)))
    assert any(why in reason for reason in choice_refusals(config))


@every_case(
    "grid, why",
    [
        (TUNED + '[grid]\n"privacy.epsilon" = [1.0]\n', "needs several runs"),
        (TUNED + '[[method]]\nname = "a"\n', "needs several runs"),
        ("seeds = [0, 1]\n" + TUNED, "of one seed"),
        (TUNED.replace("candidates", "seeds = [3]\ncandidates"), "of one seed"),
        (TUNED.replace("candidates = 4", "candidates = 0.5"), "expected 1 or more"),
        (TUNED.replace("private = true\n", ""), "only with tune.private = true"),
    ],
    ids=["grid", "methods", "seeds", "tuning seeds", "fewer than one", "not private"],
)
def test_contradictory_grids_are_refused(tmp_path, grid, why):
    with pytest.raises(Refused, match=why):
        load_grid(write(tmp_path, grid, BUDGET))


@pytest.mark.parametrize("order", ['["secret", "seeded"]', '["seeded", "secret"]'])
def test_simulations_are_not_candidates_beside_others(tmp_path, order):
    grid = TUNED[: TUNED.index('"client.lr"')] + f'"run.randomness" = {order}\n'
    with pytest.raises(Refused, match="randomness"):
        proposed(write(tmp_path, grid, BUDGET))


@pytest.mark.parametrize("by", ["", 'by = "loss"\n'])
def test_without_a_test_set_clients_have_to_score(tmp_path, by):
    base = BUDGET.replace('source = "synthetic"', 'source = "synthetic"\nholdout = "none"')
    path = write(tmp_path, TUNED.replace("private = true\n", "private = true\n" + by), base)
    with pytest.raises(Refused, match="holdout"):
        proposed(path)
    scored = '[evaluation]\nby = "clients"\nevery = 2\n[budget]\nevaluation = 0.3\n'
    path = write(tmp_path, TUNED, base + scored)
    assert proposed(path)[1].measure == "clients_accuracy"


def test_a_measure_that_is_none_is_refused_before_it_is_charged(tmp_path):
    grid = TUNED.replace("candidates = 4", 'candidates = 4\nby = "acuracy"')
    path = write(tmp_path, grid, BUDGET)
    with pytest.raises(Refused, match="acuracy"):
        tuned(path)
    assert not (tmp_path / "tuning.jsonl").exists()
