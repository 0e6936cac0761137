"""Whether training is found out where nothing hides it, and not where a small ε does."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from lanes import every_case
from small import small, trained

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT
from accounting.guarantee import Guarantee
from attacks.privacy.roc import clopper_pearson
from attacks.privacy.tradeoff import at_distance_two, tpr_bound
from privfed.cli.main import main
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.text import ceiling
from privfed.privacy_attacks.membership import Exposure, attack_configuration, attack_run
from privfed.report.membership import claim, exposure_json
from privfed.run.train import train

OVERFIT = (
    "data.source=synthetic",
    "data.features=30",
    "data.classes=5",
    "data.size_min=3",
    "data.size_mean=-20",
    "data.clients=40",
    "cohort.size=20",
    "client.batch_size=4",
    "client.epochs=10",
    "client.lr=0.1",
    "privacy.delta=1e-3",
    "run.rounds=8",
    "run.trainer=stacked",
    "run.chunk=20",
)


def quietly(done, of):
    pass


def attacked(*overrides, level="user", shadows=7):
    return attack_configuration(load(None, [*OVERFIT, *overrides]), level, shadows, 0, quietly)


def run(*words):
    return CliRunner().invoke(main, ["attack", "membership", *map(str, words)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a finished run"
    trained(path)
    return path


@pytest.mark.parametrize("level, least", [("user", 0.85), ("example", 0.62)])
def test_an_overfitted_model_gives_its_members_away(level, least):
    exposed = attacked("privacy.mechanism=none", level=level)
    assert exposed.guarantee.epsilon == math.inf
    assert exposed.targets == (40 if level == "user" else 120)
    for name, curve in exposed.curves.items():
        assert curve.auc > least, name
        assert curve.members + curve.nonmembers == 8 * exposed.targets


def test_a_small_epsilon_hides_them_and_no_attack_beats_its_bound():
    exposed = attacked("privacy.noise_multiplier=7")
    epsilon = exposed.guarantee.epsilon
    assert 0.3 < epsilon < 1.5
    for name, curve in exposed.curves.items():
        assert abs(curve.auc - 0.5) < 0.08, name
        for fpr in (0.01, 0.1, 0.5):
            low, _ = clopper_pearson(round(curve.tpr_at(fpr) * curve.members), curve.members)
            _, most = clopper_pearson(round(fpr * curve.nonmembers), curve.nonmembers)
            assert low < tpr_bound(np.array([most]), epsilon, 1e-3)[0], (name, fpr)


def test_everything_follows_from_the_seed():
    first, again = (exposure_json(attacked("privacy.mechanism=none", shadows=4)) for _ in range(2))
    assert first == again


def exposure(level, relation, epsilon, examples=None, attacked=9):
    bound = Guarantee(epsilon, 1e-5, "client", relation, "poisson", 3, "rdp", {})
    return Exposure(None, level, {}, 1, attacked, 1, 0, bound, examples, "accuracy", 0.5, "")


@every_case("relation", [ADD_REMOVE, ZERO_OUT, REPLACE_ONE])
def test_one_client_is_one_step_and_one_example_is_two_unless_it_replaces(relation):
    assert claim(exposure("user", relation, 1.5))[:2] == (1.5, 1e-5)
    expected = (1.5, 1e-5) if relation == REPLACE_ONE else at_distance_two(1.5, 1e-5)
    assert claim(exposure("user", relation, 1.5, attacked=1))[:2] == expected
    assert claim(exposure("example", relation, 1.5))[:2] == expected


def test_the_claim_about_an_example_of_a_silo_counts_where_it_is_the_smaller():
    silo = Guarantee(2.0, 1e-6, "example", ADD_REMOVE, "poisson", 3, "rdp", {})
    assert claim(exposure("example", ADD_REMOVE, math.inf, silo))[:2] == (2.0, 1e-6)
    assert claim(exposure("example", ADD_REMOVE, 0.5, silo))[0] == 1.0


@pytest.mark.parametrize("level", ["user", "example"])
def test_a_run_is_attacked_as_it_is(finished, level):
    before = sorted((path, path.stat().st_mtime_ns) for path in finished.rglob("*"))
    exposed = attack_run(finished, level, 4, 0, quietly)
    assert exposed.attacked == 1
    assert set(exposed.curves) == {"loss", "lira_offline"}
    curve = exposed.curves["loss"]
    assert curve.members == (12 if level == "user" else curve.members)
    assert curve.members + curve.nonmembers == exposed.targets
    assert exposed.guarantee.epsilon > 0.5
    assert sorted((path, path.stat().st_mtime_ns) for path in finished.rglob("*")) == before


def test_it_is_the_model_of_the_run_that_is_attacked(tmp_path):
    """One that knows all its clients by heart; a shadow knows half of them."""
    overrides = ("privacy.mechanism=none", "data.holdout_fraction=0.5", "client.epochs=20")
    train(load(None, [*OVERFIT, *overrides, "run.randomness=seeded"]), tmp_path / "r")
    exposed = attack_run(tmp_path / "r", "user", 4, 0, quietly)
    assert (exposed.curves["loss"].members, exposed.curves["loss"].nonmembers) == (40, 20)
    assert exposed.curves["loss"].auc > 0.75
    assert exposed.curves["lira_offline"].auc > 0.65


def test_a_dealt_test_set_makes_up_clients_of_the_same_sizes(tmp_path):
    trained(tmp_path / "r", "data.partition=iid", "data.size_min=4", "run.rounds=1")
    curve = attack_run(tmp_path / "r", "user", 4, 0, quietly).curves["loss"]
    assert curve.members == 12
    assert 1 <= curve.nonmembers <= 12


@every_case(
    "overrides, reason",
    [
        (("data.partition=dirichlet",), "the clients of the public test examples are unknown"),
        (("data.partition=iid", "data.holdout=examples"), "of clients that trained"),
        (("data.features=9", "data.shift=covariate"), "public test examples one by one"),
    ],
)
def test_a_run_without_anybody_to_compare_with_is_refused(tmp_path, overrides, reason):
    trained(tmp_path / "r", "run.rounds=1", *overrides)
    with pytest.raises(Refused, match=reason) as refused:
        attack_run(tmp_path / "r", "user", 4, 0, quietly)
    assert str(tmp_path / "r" / "config.toml") in str(refused.value)


def test_the_command_draws_tabulates_and_answers_in_json(tmp_path):
    file, out = tmp_path / "a run.toml", tmp_path / "an attack"
    file.write_text(small().toml(), encoding="utf-8")
    result = run(file, "--shadows", 4, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert 1 < printed["epsilon"] < 10
    assert set(printed["attacks"]) == {"loss", "lira", "lira_offline"}
    assert printed["members"] + printed["nonmembers"] == 5 * 12
    assert [one["resolved"] for one in printed["attacks"]["lira"]["tpr_at_fpr"]] == [False, False]
    assert "not resolved" in result.stderr
    assert f"ε = {ceiling(printed['epsilon'])} allows" in result.stderr
    assert "a simulation: it reads clients' own examples" in result.stderr
    assert sorted(path.name for path in out.iterdir()) == ["membership.json", "roc.png", "roc.svg"]
    assert out.stat().st_mode & 0o777 == 0o700
    assert "at most, by ε" in (out / "roc.svg").read_text(encoding="utf-8")


@every_case(
    "words, reason",
    [
        (("missing.toml",), "does not exist"),
        (("--set", "nothing", "RUN"), "is a trained run; remove --set"),
        (("--out", "RUN", "RUN"), "is not an empty folder"),
        (("--shadows", "3", "RUN"), "3 is not in the range"),
        (("--level", "household", "RUN"), "is not one of"),
    ],
)
def test_the_command_refuses_in_one_message(finished, words, reason):
    result = run(*[finished if word == "RUN" else word for word in words])
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "Traceback" not in result.output
