"""Several runs over one population: what they spent together, and what cannot be composed."""

import json
import math
import shutil
from collections import Counter

import pytest
from commands import run
from lanes import mostly_slow
from small import small, trained

from accounting.accountants import epsilon
from accounting.events import ADD_REMOVE, Event, summable
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from privfed.auditing.joint_audit import _refuse_different_public_clients, audit_together
from privfed.auditing.prior_runs import priors
from privfed.auditing.run_audit import audit
from privfed.config.reading import overridden
from privfed.core.errors import Refused
from privfed.grid.cell_charges import planned_charges
from privfed.grid.cells import Cell
from privfed.grid.joint_guarantee import joints
from privfed.plan.composed_guarantees import examples_guarantee
from privfed.plan.plan import plan
from privfed.plan.prior_spending import Prior
from privfed.run.train import resume
from privfed.store.run_directory import RunDirectory

ROUND = Event(PoissonSampled(0.2, Gaussian(2.0)), "poisson")
STEP = Event(PoissonSampled(0.3, Gaussian(1.5)), "poisson", ADD_REMOVE, "example")
SAME = ("data.population=everybody",)


def own(path):
    return Ledger.load(path / "ledger.jsonl").run_spending


@pytest.fixture
def two(tmp_path):
    trained(tmp_path / "a", *SAME)
    trained(tmp_path / "b", *SAME, "privacy.noise_multiplier=3.0", "run.rounds=5")
    return tmp_path / "a", tmp_path / "b"


def test_two_runs_are_composed(two):
    audited = audit_together(two)
    together = Counter(own(two[0])) + Counter(own(two[1]))
    assert audited.bound.by_accountant["pld"] == epsilon(together, 1e-3, "pld")
    assert audited.bound.epsilon > max(audit(path).guarantee.epsilon for path in two)
    assert audited.bound.rounds == 12
    assert not audited.earlier


def test_a_run_named_twice_or_counted_as_earlier_is_counted_once(two):
    assert audit_together([two[0], two[0], two[1]]).bound == audit_together(two).bound
    last = two[0].parent / "c"
    trained(last, *SAME, f'privacy.prior=["{two[0]}"]')
    audited = audit_together([two[0], last])
    assert audited.bound.epsilon == audit(last).guarantee.epsilon
    assert not audited.earlier
    all_three = audit_together([two[1], last])
    assert all_three.earlier == (str(two[0]),)
    total = sum((Counter(own(path)) for path in (*two, last)), Counter())
    assert all_three.bound.by_accountant["pld"] == pytest.approx(epsilon(total, 1e-3, "pld"))


def test_separations_of_two_runs_do_not_share_their_count(tmp_path):
    cyclic = ("cohort.sampler=cyclic", "cohort.separation=6", "cohort.size=0")
    for name in "ab":
        trained(tmp_path / name, *SAME, *cyclic)
    audited = audit_together([tmp_path / "a", tmp_path / "b"])
    once = summable(own(tmp_path / "a"))
    assert list(once.values()) == [2]  # ceil(7 / 6), in each
    four = dict.fromkeys(once, 4)
    assert audited.bound.epsilon == epsilon(four, 1e-3, "pld")


@pytest.mark.parametrize(
    "other, reason",
    [
        (("data.population=others",), "population"),
        ((*SAME, "cohort.sampler=fixed_size"), "relation"),
        ((*SAME, "privacy.delta=1e-4"), "delta"),
    ],
)
def test_what_means_something_else_is_not_composed(two, other, reason):
    trained(two[0].parent / "c", *other)
    with pytest.raises(Refused, match=reason):
        audit_together([two[0], two[0].parent / "c"])


def test_a_broken_ledger_breaks_the_sum(two):
    ledger = two[1] / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:3] + lines[4:]))
    audited = audit_together(two)
    assert audited.bound is None
    assert str(two[1]) in audited.problems[0]
    result = run("audit", *two, "--json")
    assert result.exit_code == 5
    assert json.loads(result.stdout)["epsilon"] == "inf"


def test_the_command_says_each_and_all(two):
    result = run("audit", *two, "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed["epsilon"] == audit_together(two).bound.epsilon
    assert [one["run"] for one in printed["runs"]] == [str(path) for path in two]
    shown = run("audit", *two).stdout
    assert "together" in shown
    assert "for any one client" in shown
    assert run("audit", *two, "--accountant", "opacus_prv").exit_code == 2
    assert run("audit", *two, "--plot", two[0] / "x.svg").exit_code == 2


def test_curves_are_drawn_and_told(two):
    picture = two[0] / "report/epsilon.svg"
    result = run("audit", two[0], "--plot", picture, "--json")
    assert result.exit_code == 0
    curves = json.loads(result.stdout)["curves"]
    assert curves["rounds"][-1][1]["pld"] == audit(two[0]).guarantee.by_accountant["pld"]
    assert len(curves["delta"]) > 5
    assert picture.read_text().startswith("<?xml")
    assert run("audit", two[0], "--plot", two[0] / "x.gif").exit_code == 2
    trained(two[0].parent / "none", "privacy.mechanism=none")
    nothing = run("audit", two[0].parent / "none", "--plot", picture)
    assert nothing.exit_code == 2
    assert "there is nothing to draw" in nothing.output


def test_an_audit_says_what_it_means(two):
    audited = audit(two[0]).to_json()
    assert "whether it is in the population" in audited["meaning"]
    assert audited["guarantees"][0]["epsilon"] == audited["epsilon"]


def test_copies_of_a_run_are_refused(tmp_path):
    """A ledger cannot tell an older copy from one that went on apart and spent twice."""
    trained(tmp_path / "run", *SAME, "run.rounds=3")
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    for name in ("run", "backup"):
        resume(tmp_path / name, lambda stored: overridden(stored, ["run.rounds=6"]))
        with pytest.raises(Refused, match="copies of one run"):
            audit_together([tmp_path / "run", tmp_path / "backup"])


def test_an_older_copy_than_was_counted_is_refused(tmp_path):
    trained(tmp_path / "run", *SAME, "run.rounds=3")
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    resume(tmp_path / "run", lambda stored: overridden(stored, ["run.rounds=6"]))
    trained(tmp_path / "next", *SAME, f'privacy.prior=["{tmp_path / "run"}"]')
    with pytest.raises(Refused, match="older copy"):
        audit_together([tmp_path / "old", tmp_path / "next"])
    assert audit_together([tmp_path / "run", tmp_path / "next"]).bound is not None


def test_runs_that_declared_other_clients_public_are_not_composed(two):
    told = json.dumps({"clients": ["somebody"], "earlier": []})
    (two[1] / "report/public_clients.json").write_text(told)
    with pytest.raises(Refused, match="clients public"):
        _refuse_different_public_clients([RunDirectory.open(path) for path in two])


SILOS = (
    *("data.setting=cross_silo", "cohort.sampler=full", "cohort.size=0", *SAME),
    *("privacy.mechanism=none", "client.privacy.mechanism=dp_sgd"),
)


def test_an_examples_guarantee_covers_earlier_runs_too(tmp_path):
    trained(tmp_path / "a", *SILOS, "run.rounds=2")
    trained(tmp_path / "b", *SILOS, f'privacy.prior=["{tmp_path / "a"}"]', "run.rounds=1")
    alone, both = audit(tmp_path / "a").examples, audit(tmp_path / "b").examples
    assert both.epsilon > alone.epsilon
    assert both.rounds == 3
    merged = audit_together([tmp_path / "a", tmp_path / "b"])
    assert merged.examples.epsilon == pytest.approx(both.epsilon)
    summary = json.loads((tmp_path / "b/report/summary.json").read_text())
    assert summary["guarantees"][1]["epsilon"] == both.epsilon


@pytest.mark.parametrize("mechanism", mostly_slow(["none", "gaussian"], "gaussian"))
def test_an_earlier_run_without_dp_sgd_bounds_no_example(tmp_path, mechanism):
    """Whatever it promises whole clients: in the run, its summary, audits, and a grid's cells."""
    sampled = ("cohort.sampler=poisson", "cohort.size=4") if mechanism == "gaussian" else ()
    both = (*SILOS, f"privacy.mechanism={mechanism}", *sampled, "run.rounds=2")
    bare = (*both, "client.privacy.mechanism=none")
    after = f'privacy.prior=["{tmp_path / "bare"}"]'
    trained(tmp_path / "bare", *bare)
    before = plan(small(*both, after), priors(small(*both, after))).examples(2)
    outcome = trained(tmp_path / "next", *both, after)
    trained(tmp_path / "alone", *both, "run.rounds=3")
    merged = [audit_together([tmp_path / name for name in names]) for names in (NAMES, NAMES[::-1])]
    (together,) = joints([planned_charges(Cell({}, 0, small(*both, after), None))], {})
    found = [before, audit(tmp_path / "next").examples, together.examples]
    for bound in (*found, *(each.examples for each in merged)):
        assert bound.epsilon == math.inf
        assert bound.unit == "example"
        assert bound.missing == f"no DP-SGD in {tmp_path / 'bare'}"
    (stated,) = (g for g in outcome.to_json()["guarantees"] if g["unit"] == "example")
    assert stated["epsilon"] == math.inf
    assert "nothing is promised about any one example of a silo" in stated["meaning"]
    assert not audit(tmp_path / "next").problems
    assert audit(tmp_path / "alone").examples.epsilon < math.inf


NAMES = ["bare", "alone"]


def test_an_older_ledger_that_is_silent_bounds_no_example():
    older = {"run": "a", "id": "a", "head": "00", "charges": [[ROUND.to_json(), 1]]}
    run = Prior.from_json(older)
    assert run.examples is None
    assert Prior.from_json(run.to_json()).examples is None
    assert Prior.from_json({**older, "examples": []}).examples == {}
    assert examples_guarantee({}, [run], 1e-3).missing == "no DP-SGD in a"
    nothing = Prior.from_json({**older, "charges": []})
    assert not examples_guarantee({STEP: 1}, [nothing], 1e-3).missing


def test_all_accountants_that_apply_agree(two):
    """Opacus on Poisson draws and on a cyclic run's participations; nothing on fixed sizes."""
    found = audit(two[0], "all")
    assert found.accountants["opacus_prv"] == pytest.approx(found.accountants["pld"], rel=0.02)
    assert found.accountants["opacus_rdp"] == pytest.approx(found.accountants["rdp"], rel=0.05)
    assert found.guarantee.accountant == "tightest"
    cyclic = ("cohort.sampler=cyclic", "cohort.separation=3", "cohort.size=0")
    trained(two[0].parent / "cyclic", *SAME, *cyclic)
    found = audit(two[0].parent / "cyclic", "all")
    assert found.accountants["opacus_prv"] == pytest.approx(found.accountants["pld"], rel=0.02)
    trained(two[0].parent / "fixed", *SAME, "cohort.sampler=fixed_size")
    assert audit(two[0].parent / "fixed", "all").accountants["opacus_prv"] is None


def test_a_large_delta_is_stated_of_every_joint_guarantee(tmp_path):
    """Of all runs together, and against the party that the budget does not gate."""
    masked = ("secure.protocol=masks", "secure.simulate=arithmetic", "privacy.mechanism=skellam")
    for rounds in ("1", "2"):
        trained(tmp_path / rounds, *masked, *SAME, "privacy.delta=0.5", f"run.rounds={rounds}")
    why = "δ = 0.5 is not below 1 / clients (1/12)"
    merged = audit_together([tmp_path / "1", tmp_path / "2"])
    assert merged.bound.delta_warning.startswith(why)
    assert merged.other.delta_warning.startswith(why)
    assert all(why in stated["meaning"] for stated in merged.to_json()["guarantees"])
    assert " ".join(run("audit", tmp_path / "1", tmp_path / "2").output.split()).count(why) == 2
    alone = " ".join(run("audit", tmp_path / "1").output.split())
    assert alone.count(why) == 2
