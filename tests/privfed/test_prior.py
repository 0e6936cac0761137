"""Earlier runs over the same population count before a new one starts."""

import json
import shutil

import pytest
from click.testing import CliRunner
from small import SMALL, small, trained

from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from privfed.audit import audit
from privfed.cli import main
from privfed.errors import Refused
from privfed.plan import plan
from privfed.prior import priors, spending
from privfed.run import resume

DELTA = 1e-3


def after(*paths):
    return f"privacy.prior={json.dumps([str(path) for path in paths])}"


def ledger(path):
    return Ledger.load(path / "ledger.jsonl")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    path = tmp_path_factory.mktemp("prior") / "first"
    trained(path)
    return path


def test_a_second_run_spends_on_top_of_the_first(first, tmp_path):
    outcome = trained(tmp_path / "second", after(first), "run.rounds=4")
    own = ledger(tmp_path / "second").own
    both = guarantee(spending_of(first, own), DELTA)
    assert outcome.guarantee.epsilon == both.epsilon
    assert outcome.charges == 4
    alone = guarantee(own, DELTA).epsilon
    found = audit(tmp_path / "second")
    assert not found.problems
    assert found.guarantee.epsilon == both.epsilon
    assert (found.alone.epsilon, found.charges) == (alone, 4)
    assert alone < both.epsilon
    last = json.loads((tmp_path / "second/metrics.jsonl").read_text().splitlines()[-1])
    assert last["epsilon"] == both.epsilon


def spending_of(path, own):
    total = dict(own)
    for event, count in ledger(path).spending.items():
        total[event] = total.get(event, 0) + count
    return total


def test_the_ledger_alone_proves_it_when_the_first_run_is_gone(first, tmp_path):
    shutil.copytree(first, tmp_path / "copy")
    trained(tmp_path / "second", after(tmp_path / "copy"), "run.rounds=4")
    before = audit(tmp_path / "second").guarantee
    shutil.rmtree(tmp_path / "copy")
    assert audit(tmp_path / "second").guarantee == before
    outcome = resume(tmp_path / "second", lambda stored: stored.with_run(rounds=6))
    assert outcome.guarantee.epsilon > before.epsilon
    assert ledger(tmp_path / "second").prior == ledger(first).own


def test_noise_is_calibrated_to_what_is_left(first, tmp_path):
    budget = guarantee(ledger(first).spending, DELTA).epsilon + 1.5
    free = plan(small("privacy.noise_multiplier=1"), None)
    config = small(f"privacy.epsilon={budget}", after(first))
    planned = plan(config, spending(priors(config)))
    assert planned.guarantee.epsilon == pytest.approx(budget, abs=1e-3)
    assert planned.guarantee.epsilon <= budget
    alone = plan(small(f"privacy.epsilon={budget}"))
    assert planned.noise_multiplier > alone.noise_multiplier > 0
    assert free.prior == {}


def test_the_gate_counts_the_first_run_round_by_round(first, tmp_path):
    """With the noise fixed and a budget on resume, the second run stops where both reach it."""
    overrides = (after(first), "run.rounds=2", "privacy.epsilon=9")
    trained(tmp_path / "second", *overrides)
    stored = ledger(tmp_path / "second")
    budget = guarantee(stored.spending, DELTA).epsilon + 0.05

    def change(config):
        wanted = config.with_run(rounds=500)
        privacy = wanted.privacy.model_copy(update={"epsilon": budget})
        return type(wanted)(
            {**wanted.own, "privacy": privacy}, wanted.parts, wanted.names, wanted.noise_multiplier
        )

    outcome = resume(tmp_path / "second", change)
    assert outcome.stopped_at_budget
    assert outcome.guarantee.epsilon <= budget
    one_more = dict(ledger(tmp_path / "second").spending)
    one_more[next(iter(stored.own))] += 1
    assert guarantee(one_more, DELTA).epsilon > budget


def test_a_chain_of_runs_counts_all_of_them_once(first, tmp_path):
    trained(tmp_path / "second", after(first), "run.rounds=3")
    trained(tmp_path / "third", after(tmp_path / "second"), "run.rounds=2")
    assert sum(ledger(tmp_path / "third").spending.values()) == 7 + 3 + 2
    for names in ((first, tmp_path / "second"), (first, first)):
        with pytest.raises(Refused, match="2 times"):
            priors(small(after(*names)))


def test_a_budget_that_is_already_spent_is_refused(first):
    used = guarantee(ledger(first).spending, DELTA).epsilon
    config = small(f"privacy.epsilon={0.9 * used}", after(first))
    with pytest.raises(Refused, match="earlier runs already spent"):
        plan(config, spending(priors(config)))


def test_another_population_is_refused_unless_it_has_the_same_name(first, tmp_path):
    other = ("data.size_min=3",)
    with pytest.raises(Refused, match=r"one population only.*data\.population"):
        priors(small(after(first), *other))
    trained(tmp_path / "named", "data.population=ward", "run.rounds=2")
    assert priors(small(after(tmp_path / "named"), "data.population=ward", *other))
    with pytest.raises(Refused, match="one population only"):
        priors(small(after(tmp_path / "named"), "data.population=another"))


def test_a_simulation_is_no_prior_of_a_real_run(tmp_path):
    trained(tmp_path / "seeded", "run.randomness=seeded", "run.rounds=2")
    with pytest.raises(Refused, match="is a simulation"):
        priors(small(after(tmp_path / "seeded")))
    assert priors(small(after(tmp_path / "seeded"), "run.randomness=seeded"))


def test_a_broken_or_missing_prior_is_refused(first, tmp_path):
    with pytest.raises(Refused, match="not a run directory"):
        priors(small(after(tmp_path / "gone")))
    shutil.copytree(first, tmp_path / "edited")
    path = tmp_path / "edited/ledger.jsonl"
    path.write_bytes(path.read_bytes().rsplit(b"\n", 3)[0] + b"\n")
    with pytest.raises(Refused, match="proves nothing"):
        priors(small(after(tmp_path / "edited")))


def test_the_command_line_says_what_was_spent_before(first, tmp_path):
    settings = [word for option in (*SMALL, after(first)) for word in ("--set", option)]
    checked = CliRunner().invoke(main, ["check", *settings])
    assert checked.exit_code == 0, checked.output
    assert "was spent before, over the same population" in checked.stdout
    out = str(tmp_path / "second")
    result = CliRunner().invoke(main, ["train", *settings, "--out", out])
    assert "earlier runs included" in result.stdout
    shown = CliRunner().invoke(main, ["audit", out]).stdout
    assert "is this run's own; earlier runs" in shown


def test_an_edited_prior_breaks_the_ledger(first, tmp_path):
    trained(tmp_path / "second", after(first), "run.rounds=2")
    path = tmp_path / "second/ledger.jsonl"
    text = path.read_text()
    assert text.count(",7]") == 1
    path.write_text(text.replace(",7]", ",1]"))
    assert audit(tmp_path / "second").problems
