"""Runs whose epsilons assume different things: charged for the stronger adversary, or refused."""

import json
import math
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commands import run
from description_setup import QUICK, SEEDED, run_file
from grids import write
from lanes import every_case, mostly_slow
from private_tunings import BUDGET, TUNED, proposed
from small import SMALL, small, trained

from accounting.errors import Unaccountable
from accounting.events import ZERO_OUT, Event, summable
from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from accounting.noises import DiscreteGaussians, Gaussian, Skellam
from accounting.releases import PoissonSampled, Repeated, SeveralSites
from privfed.auditing.joint_audit import audit_together
from privfed.auditing.prior_runs import priors
from privfed.auditing.run_audit import audit
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.grid.cell_charges import planned_charges
from privfed.grid.cells import Cell
from privfed.grid.joint_guarantee import joints
from privfed.plan import assumptions
from privfed.plan.assumed import ASSUMED, OWN_SITE, SERVER, Assumed
from privfed.plan.assumptions import ASSUMPTIONS, COMPARED, Incomposable, charged_against
from privfed.plan.composed_guarantees import counted_priors
from privfed.plan.prior_spending import Prior, Priors
from privfed.privacy.counted_noise import NoiseOfClients, NoiseOfPairs, NoiseOfSites
from privfed.privacy.noise.pairwise import alone_for_ratio
from privfed.run.prepare import plan_with_length
from privfed.run.train import resume
from privfed.secure.encoded_accumulator import Arithmetic
from privfed.secure.encoded_sum import EncodedSummation

PEOPLE = ("data.population=everybody", "data.clients=30", "run.rounds=2", "privacy.delta=1e-4")
EVERYBODY = ("cohort.sampler=full", "cohort.size=0")
MASKED = (*PEOPLE, *EVERYBODY, "privacy.mechanism=skellam", "secure.protocol=masks")
SITES = (*PEOPLE, "data.sites=5")
AT_SITES = (*SITES, "privacy.mechanism=skellam", "secure.protocol=masks")
NO_COLLUDERS = "secure.colluders=0.0"
TWICE = "data.sites_per_client=2"

CHARGED = {
    "colluders of masks": (MASKED, (NO_COLLUDERS,), ("secure.colluders=0.3",)),
    "colluders of a key holder": (
        (*MASKED, "secure.protocol=bfv"),
        (NO_COLLUDERS,),
        ("secure.colluders=0.4",),
    ),
    "more colluders of a key holder, in whole clients": (
        (*MASKED, "secure.protocol=bfv", "data.clients=5"),
        ("secure.colluders=0.39",),
        ("secure.colluders=0.4",),
    ),
    "Byzantine clients": (MASKED, (NO_COLLUDERS,), (NO_COLLUDERS, "aggregation.byzantine=9")),
    "Byzantine clients, readers": (
        (*MASKED, NO_COLLUDERS, "privacy.against=readers"),
        (),
        ("aggregation.byzantine=9",),
    ),
    "colluders, discrete Gaussians": (
        (*MASKED, "privacy.mechanism=discrete_gaussian"),
        (NO_COLLUDERS,),
        ("secure.colluders=0.25",),
    ),
    "sites per client, central noise": (SITES, (), (TWICE,)),
    "sites per client, Skellam noise": (AT_SITES, (), (TWICE,)),
    "sites per client, noise of each site": (
        (*SITES, "privacy.mechanism=local_gaussian"),
        (),
        (TWICE,),
    ),
}
"""Pairs of runs that are composed: keys of both, of the earlier one, and of the later one."""

REFUSED = {
    "trusted parties": (
        (*MASKED, "secure.threshold=0.8"),
        ('secure.threat="curious"',),
        ('secure.threat="malicious"',),
        "relies on the server to follow the protocol",
    ),
    "trusted key holder": (
        (*PEOPLE, *EVERYBODY),
        ("secure.protocol=bfv",),
        ("secure.protocol=masks",),
        "trusts the key holder",
    ),
    "colluding and Byzantine parties": (
        (*MASKED, "secure.threshold=0.4"),
        (NO_COLLUDERS,),
        ("secure.colluders=0.39",),
        "hide rows only if at most",
    ),
    "sites per client": (
        SITES,
        ("cohort.sampler=truncated_poisson",),
        (TWICE,),
        "no bound is known for a client",
    ),
}
"""Pairs that are refused, and the reason."""


@pytest.fixture(autouse=True)
def no_messages(monkeypatch):
    """Sums are added up without cryptography: no charge depends on it."""

    def added_up(summation, session, codec, layers):
        lost = partial(summation.protocol.abort_where_lost, session, summation.limits)
        return Arithmetic(session, codec, summation.limits, layers, lost)

    monkeypatch.setattr(EncodedSummation, "channel", added_up)


def after(path):
    return f"privacy.prior={json.dumps([str(path)])}"


def right(both, later):
    """The epsilon of the rounds of both runs at the later run's assumptions."""
    return plan_with_length(small(*both, *later, "run.rounds=4")).guarantee.epsilon


def without(monkeypatch, *names):
    """Drops comparisons, as a mutation of the code would."""
    left = tuple(each for each in COMPARED if each.name not in names)
    monkeypatch.setattr(assumptions, "COMPARED", left)
    if not left:  # nor does it state that anything was charged for
        monkeypatch.setattr(Assumed, "under", lambda assumed, now: assumed)


EVERY = [each.name for each in COMPARED]


@pytest.mark.parametrize(
    "case",
    mostly_slow(
        CHARGED,
        *("colluders of masks", "colluders of a key holder", "Byzantine clients, readers"),
        *("sites per client, central noise", "sites per client, Skellam noise"),
    ),
)
def test_an_earlier_run_is_charged_for_the_later_runs_adversary(case, tmp_path, monkeypatch):
    """In the plan, the run, its audit and the joint audit; no comparison may be dropped."""
    both, earlier, later = CHARGED[case]
    first, second, alone = (tmp_path / name for name in ("first", "second", "alone"))
    trained(first, *both, *earlier)
    trained(alone, *both, *later)
    wanted = pytest.approx(right(both, later), rel=1e-6)
    keys = [item for key in (*SMALL, *both, *later, after(first)) for item in ("--set", key)]
    assert json.loads(run("check", *keys, "--json").stdout)["epsilon"] == wanted
    assert trained(second, *both, *later, after(first)).guarantee.epsilon == wanted
    assert audit(second).guarantee.epsilon == wanted
    for paths in ((first, alone), (alone, first), (first, second), (second,)):
        assert audit_together(paths).bound.epsilon == wanted
    with monkeypatch.context() as mutation:
        without(mutation, *EVERY)
        too_small = trained(tmp_path / "mutant", *both, *later, after(first)).guarantee.epsilon
        assert too_small < right(both, later) * 0.999
        assert audit_together((first, alone)).bound.epsilon < right(both, later) * 0.999
    # What such a version wrote is not believed: by no audit, list or run that goes on.
    audited = audit(tmp_path / "mutant").guarantee
    assert audited.epsilon == math.inf
    assert "under weaker assumptions" in audited.missing
    with pytest.raises(Refused, match=r"cannot be resumed: .* weaker assumptions"):
        resume(tmp_path / "mutant", lambda stored: stored.with_run(rounds=3))


@every_case("case", CHARGED)
def test_an_earlier_run_with_stronger_assumptions_costs_what_it_cost(case, tmp_path):
    both, later, earlier = CHARGED[case]
    trained(tmp_path / "first", *both, *earlier)
    (prior,) = priors(small(*both, *later, after(tmp_path / "first"))).runs
    assert prior.spending == Prior.of("", Ledger.load(tmp_path / "first/ledger.jsonl")).spending


@every_case("case", REFUSED)
def test_what_no_bound_is_known_for_is_refused(case, tmp_path, monkeypatch):
    both, earlier, later, reason = REFUSED[case]
    trained(tmp_path / "first", *both, *earlier)
    trained(tmp_path / "apart", *both, *later)
    counting = small(*both, *later, after(tmp_path / "first"))
    with pytest.raises(Refused, match=reason):
        priors(counting)
    with monkeypatch.context() as mutation:
        without(mutation, *EVERY)
        trained(tmp_path / "mutant", *both, *later, after(tmp_path / "first"))
    assert audit(tmp_path / "mutant").guarantee.epsilon == math.inf
    assert reason in audit(tmp_path / "mutant").guarantee.missing
    with pytest.raises(Refused, match=reason):
        resume(tmp_path / "mutant", lambda stored: stored.with_run(rounds=3))


@every_case("name", EVERY)
def test_dropping_any_one_comparison_is_noticed(name, tmp_path, monkeypatch):
    both, earlier, later, reason = REFUSED[name]
    trained(tmp_path / "first", *both, *earlier)
    counting = small(*both, *later, after(tmp_path / "first"))
    others = [each for each in EVERY if each != name]
    without(monkeypatch, *others)
    with pytest.raises(Refused, match=reason):
        priors(counting)
    without(monkeypatch, *EVERY)
    assert priors(counting).runs


@every_case("case", CHARGED)
def test_cells_of_a_grid_that_assume_different_things_have_no_one_epsilon(case):
    both, earlier, later = CHARGED[case]
    entries = [planned_charges(Cell({}, 0, small(*both, *keys), None)) for keys in (earlier, later)]
    (joint,) = joints(entries, {})
    assert joint.epsilon is None
    assert {*joint.differ} & {*ASSUMED.values()}
    (alone,) = joints(entries[1:], {})
    assert alone.epsilon < math.inf


def test_a_description_is_charged_for_the_assumptions_of_the_training_that_counts_it(tmp_path):
    masked = ("privacy.mechanism=skellam", "secure.protocol=masks", *EVERYBODY)
    keys = [item for key in (*masked, NO_COLLUDERS) for item in ("--set", key)]
    described, file = tmp_path / "described", run_file(tmp_path)
    out = ("--epsilon", "9", "--out", described)
    result = run("describe", file, "--set", SEEDED, *QUICK, *keys, *out)
    assert result.exit_code == 0, result.output
    keys = (SEEDED, "data.label=ill", "data.classes=2", *masked, "secure.colluders=0.3")
    training = load(file, [*keys, after(described)])
    (before,) = Prior.of("", Ledger.load(described / "ledger.jsonl")).spending
    ((charged,),) = (prior.spending for prior in priors(training).runs)
    assert charged.release.variance < before.release.variance


def test_a_private_tuning_charges_earlier_runs_for_its_own_assumptions(tmp_path):
    sites = BUDGET.replace("epsilon = 4.0", "epsilon = 9.0").replace("[data]", "[data]\nsites = 3")
    trained_file = tmp_path / "first.toml"
    trained_file.write_text(sites)
    assert run("train", trained_file, "--out", tmp_path / "first").exit_code == 0
    twice = sites.replace("sites = 3", "sites = 3\nsites_per_client = 2")
    prior = f'epsilon = 30.0\nprior = ["{tmp_path / "first"}"]'
    grid = write(tmp_path / "tuned", TUNED, twice.replace("epsilon = 9.0", prior))
    _, proposal = proposed(grid)
    ((event,),) = (run.spending for run in proposal.before.runs)
    assert event.release.sites == 2


def test_a_start_from_an_earlier_model_is_charged_for_the_later_runs_assumptions(tmp_path):
    first = tmp_path / "first"
    trained(first, *SITES)
    start = f"model.init={json.dumps(str(first))}"
    with pytest.raises(Refused, match="counts as well"):
        trained(tmp_path / "uncounted", *SITES, TWICE, start)
    outcome = trained(tmp_path / "second", *SITES, TWICE, start, after(first))
    assert outcome.guarantee.epsilon == pytest.approx(right(SITES, (TWICE,)), rel=1e-6)
    assert not outcome.guarantee.uncovered


def test_further_evaluation_rounds_are_refused_on_a_ledger_that_counted_too_little(
    tmp_path, monkeypatch
):
    trained(tmp_path / "first", *SITES)
    with monkeypatch.context() as mutation:
        without(mutation, *EVERY)
        trained(tmp_path / "mutant", *SITES, TWICE, after(tmp_path / "first"))
    result = run("evaluate", tmp_path / "mutant", "--federated", "--epsilon", "9")
    assert result.exit_code == 2
    assert "weaker assumptions" in " ".join(result.output.split())


def test_colluders_of_pairs_leave_less_noise_on_a_row(tmp_path):
    """Noise of 2 C was counted with h = 28 honest clients, and 22 are what the later run assumes.

    Of a client's own noise a it was a / alone(28); the same a counts as a / alone(22).
    """
    both = (*PEOPLE, *EVERYBODY, "privacy.mechanism=pairwise_gaussian", "aggregation.byzantine=1")
    trained(tmp_path / "first", *both, "privacy.colluders=1")
    counting = small(*both, "privacy.colluders=7", after(tmp_path / "first"))
    ((event,),) = (prior.spending for prior in priors(counting).runs)
    z = 2.0 / 2 * alone_for_ratio(1.0, 28) / alone_for_ratio(1.0, 22)
    assert event.release.noise_multiplier == pytest.approx(z)
    trained(tmp_path / "second", *both, "privacy.colluders=7", after(tmp_path / "first"))
    wanted = guarantee({replace(event, release=Gaussian(n)): 2 for n in (z, 1.0)}, 1e-4).epsilon
    assert audit(tmp_path / "second").guarantee.epsilon == pytest.approx(wanted)


def test_parties_that_were_proved_to_be_byzantine_are_not_counted_on(tmp_path, monkeypatch):
    """An earlier run's own assumption failed: it is charged without as many of its parties."""
    first = tmp_path / "first"
    trained(first, *MASKED, NO_COLLUDERS)
    plain = priors(small(*MASKED, NO_COLLUDERS, after(first)))
    monkeypatch.setattr(
        "privfed.store.round_logs.ExclusionLog.culprits", lambda log: ("one", "two", "three")
    )
    (prior,) = priors(small(*MASKED, NO_COLLUDERS, after(first))).runs
    assert prior.assumed.byzantine == 3
    less, more = (next(iter(each.spending)).release.variance for each in (prior, plain.runs[0]))
    assert less < more
    assert audit_together([first]).bound.epsilon > audit(first).guarantee.epsilon


def test_a_ledger_that_does_not_state_its_assumptions_bounds_nothing_against_that_party(tmp_path):
    trained(tmp_path / "first", *MASKED)
    prior = Prior.of("first", Ledger.load(tmp_path / "first/ledger.jsonl"))
    silent = replace(prior, assumed=None)
    with pytest.raises(Incomposable, match="epsilon is infinite"):
        silent.under(prior.assumed)
    terms = {"against": "server", "assumes": prior.assumed.to_json()}
    before, why = counted_priors({**terms, "prior": [silent.to_json()]})
    assert "does not state" in why
    assert before.runs[0].other is None
    assert counted_priors({**terms, "prior": [prior.to_json()]}) == (
        Priors((prior,), lineage=before.lineage),
        "",
    )


@every_case("protocol", ["masks", "committee", "regions", "bfv"])
@every_case("colluders", [0.0, 0.1, 0.13])
def test_the_runs_own_numbers_give_what_it_was_charged_for(protocol, colluders):
    keys = (*MASKED, f"secure.protocol={protocol}", f"secure.colluders={colluders}")
    planned = plan_with_length(small(*keys, "data.clients=19", "aggregation.byzantine=2"))
    (noise,) = planned.assumed.noise
    charged = planned.config.row_hiding.honest(planned.cost.limits)
    assert noise.part("server", colluders, 2) == pytest.approx(charged, rel=1e-12)


def test_an_older_ledger_states_whom_it_trusts_and_its_sites():
    """As before "assumes" was stated: enough for noise that others do not add."""
    terms = {"trust": "server", "sites": {"declared": 5, "per_client": 2}}
    assert Assumed.from_terms(terms) == Assumed((OWN_SITE, SERVER), sites_per_client=2)
    local = {"trust": "client", "sites": {"declared": 5, "per_client": 1, "parties": 5}}
    assert Assumed.from_terms(local) == Assumed((OWN_SITE,), sites_per_client=1)
    assert Assumed.from_terms({"trust": "server"}) == Assumed((SERVER,))
    assert Assumed.from_terms({"trust": "sum", "against": "server"}) is None


def test_the_terms_state_both_numbers_always(tmp_path):
    for keys, wanted in {
        PEOPLE: (None, None),
        (*MASKED, "aggregation.byzantine=2"): (0.1, 2),
        AT_SITES: (1, None),
    }.items():
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        trained(folder, *keys)
        assumes = Ledger.load(folder / "ledger.jsonl").terms["assumes"]
        assert (assumes["colluders"], assumes["byzantine"]) == wanted


ROUND = Event(Skellam(100.0, 3.0, 9.0), "full", ZERO_OUT)
CLIENTS = NoiseOfClients(
    size=20,
    survivors=16,
    colluders=0.0,
    known_at_least=0.0,
    known=1.25,
    colluders_tolerated=0.5,
    aborts=1e-6,
)
WEAK = Assumed(colluders=0.0, byzantine=0, noise=(CLIENTS,))


@every_case(
    "noise, more, part",
    [
        (ROUND.release, {"colluders": 0.4}, 0.5),
        (ROUND.release, {"byzantine": 4}, 0.75),
        (ROUND.release, {"byzantine_share": 0.2}, 0.75),
        (ROUND.release, {"colluders": 0.2, "byzantine": 4}, 0.5),
        (Gaussian(3.0), {"colluders": 0.4}, 0.5),
    ],
)
def test_less_noise_counts_by_hand(noise, more, part):
    """Of 16 survivors' noise, less the Byzantine ones' and 1.25 times the colluders' part."""
    spending = {replace(ROUND, release=noise): 3}
    (event,) = charged_against(spending, "server", WEAK, replace(WEAK, **more))
    match event.release:
        case Skellam(variance=variance):
            assert variance == pytest.approx(100 * part)
        case Gaussian(noise_multiplier=z):
            assert z == pytest.approx(3 * math.sqrt(part))


def test_discrete_gaussians_are_counted_in_whole_clients():
    release = DiscreteGaussians(4.0, 10, 3.0, 9.0, 8)
    now = replace(WEAK, colluders=0.44)
    (event,) = charged_against({replace(ROUND, release=release): 1}, "server", WEAK, now)
    assert event.release == replace(release, clients=4)  # 10 (1 - 0.55), rounded down
    one = replace(release, clients=1)
    with pytest.raises(Incomposable, match="discrete"):
        charged_against({replace(ROUND, release=one): 1}, "server", WEAK, now)


def test_readers_are_told_by_the_noise_who_was_drawn_where_somebody_is_byzantine():
    drawn = replace(
        ROUND, release=PoissonSampled(0.1, ROUND.release), relation="add/remove", slack=3e-6
    )
    now = replace(WEAK, byzantine=4, colluders=0.4)
    (event,) = charged_against({drawn: 1}, "readers", WEAK, now)
    assert event.relation == ZERO_OUT
    assert event.release == Skellam(75.0, 3.0, 9.0)  # colluders know nothing that readers see
    assert event.slack == pytest.approx(2e-6)  # visible aborts reveal nothing that is a secret
    assert charged_against({drawn: 1}, "readers", WEAK, replace(WEAK, colluders=0.4)) == {drawn: 1}


def test_all_of_the_noise_may_be_gone():
    with pytest.raises(Incomposable, match="no honest noise remains"):
        charged_against({ROUND: 1}, "server", WEAK, replace(WEAK, byzantine=16))
    with pytest.raises(Incomposable, match="hide rows only if at most"):
        charged_against({ROUND: 1}, "server", WEAK, replace(WEAK, colluders=0.6))


def test_charging_twice_changes_nothing_more():
    prior = Prior("a", "a", "00", {ROUND: 2}, against="server", assumed=WEAK)
    now = replace(WEAK, colluders=0.3, byzantine=2, byzantine_share=0.3)
    once = prior.under(now)
    assert once.under(now) == once != prior
    assert once.assumed.byzantine == 6


def test_noise_of_sites_and_of_pairs_by_hand():
    sites = NoiseOfSites(5, 4, 3)
    assert sites.part("sites", 3, 0) / sites.part("sites", 1, 0) == pytest.approx(1 / 3)
    assert sites.part("others", 3, 0) == 1.0
    pairs = NoiseOfPairs(10, 1.0)  # h = 9: 1/s^2 = 1/9 + (8/9)/10 of a client's own precision
    assert pairs.part("clients", 1, 0) == pytest.approx(1 / (1 / 9 + 8 / 90))
    assert pairs.part("clients", 3, 0) == pytest.approx(1 / (1 / 7 + 6 / 56))
    assert pairs.part("clients", 10, 0) == 0.0


CENTRAL = Assumed((OWN_SITE, SERVER), sites_per_client=1)


@every_case(
    "release, sites, assumed, wanted, times",
    [
        (PoissonSampled(0.1, Gaussian(2.0)), 1, CENTRAL, SeveralSites(0.1, 3, Gaussian(2.0)), 1),
        (SeveralSites(0.1, 2, Gaussian(2.0)), 2, CENTRAL, SeveralSites(0.1, 3, Gaussian(2.0)), 1),
        (
            PoissonSampled(0.1, Skellam(90.0, 3.0, 9.0)),
            1,
            CENTRAL,
            PoissonSampled(0.1, Skellam(30.0, 3.0, 9.0)),
            3,
        ),
        (
            PoissonSampled(0.1, Gaussian(2.0)),
            1,
            Assumed((OWN_SITE,), sites_per_client=1),
            PoissonSampled(0.1, Gaussian(2.0)),
            3,
        ),
    ],
)
def test_a_client_at_more_sites_by_hand(release, sites, assumed, wanted, times):
    """Rules of proof, section 9.4: each row is clipped to C / s, and s' of them are summed."""
    event = Event(release, "poisson")
    assumed = replace(assumed, sites_per_client=sites)
    spent = charged_against({event: 2}, None, assumed, replace(assumed, sites_per_client=3))
    assert spent == {replace(event, release=wanted): 2 * times}


def test_a_later_run_without_sites_bounds_no_client_at_several():
    with pytest.raises(Incomposable, match="declares no sites"):
        charged_against({}, None, CENTRAL, replace(CENTRAL, sites_per_client=None))


@pytest.mark.parametrize(
    "release", [Gaussian(2.0), Repeated(2, PoissonSampled(0.1, Gaussian(1.0)))]
)
def test_draws_without_a_bound_at_more_sites_are_refused(release):
    with pytest.raises(Incomposable, match="no bound is known"):
        charged_against(
            {Event(release, "cyclic"): 1}, None, CENTRAL, replace(CENTRAL, sites_per_client=2)
        )


FREE = {
    "dropout and survivors": (MASKED, ("cohort.dropout=0.1",), ("secure.minimum=22",)),
    "sites": (PEOPLE, ("data.sites=4",), ("data.sites=6",)),
    "declared population size, sampling": (PEOPLE, ("cohort.size=4",), ("cohort.size=9",)),
    "groups of clients": (
        (*PEOPLE, "cohort.sampler=allocation", "cohort.size=0", "run.rounds=6"),
        ("cohort.slots=2",),
        ("cohort.slots=6",),
    ),
    "weights": (PEOPLE, ("server.lr=1.0",), ("server.lr=0.5",)),
    "independent noise": (PEOPLE, ("client.lr=0.1",), ("client.lr=0.2",)),
}
"""Pairs that may differ: each run is charged by its own events."""


@every_case("name", FREE)
def test_what_is_a_fact_of_each_run_is_charged_in_its_own_events(name, tmp_path):
    both, earlier, later = FREE[name]
    trained(tmp_path / "first", *both, *earlier)
    outcome = trained(tmp_path / "second", *both, *later, after(tmp_path / "first"))
    own = [
        summable(Ledger.load(tmp_path / run_ / "ledger.jsonl").run_spending)
        for run_ in ("first", "second")
    ]
    second = Ledger.load(tmp_path / "second/ledger.jsonl").run_spending
    assert outcome.guarantee.epsilon == guarantee(Counter(own[0]) + Counter(second), 1e-4).epsilon


EQUAL = {
    "adjacency relation": (PEOPLE, ("cohort.sampler=fixed_size",), (), "agree in both"),
    "population": (PEOPLE, ("data.population=others",), (), "are not the clients of this run"),
    "party": (MASKED, ("secure.protocol=none", "privacy.mechanism=gaussian"), (), "against"),
    "simulation": (PEOPLE, ("run.randomness=seeded",), (), "is a simulation"),
    "void guarantee": (
        (*PEOPLE, "run.randomness=seeded"),
        ("attack.name=alie", "attack.fraction=0.2"),
        (),
        "void",
    ),
    "starting model": (PEOPLE, (), ("model.init={first}", "privacy.prior=[]"), "counts as well"),
}
"""Rows in which runs have to be equal: keys of both, of each, and the reason."""


@every_case("name", EQUAL)
def test_what_has_to_be_equal_is_refused_where_it_differs(name, tmp_path):
    both, earlier, later, reason = EQUAL[name]
    later = [key.format(first=json.dumps(str(tmp_path / "first"))) for key in later]
    trained(tmp_path / "first", *both, *earlier)
    counting = () if later else (after(tmp_path / "first"),)
    with pytest.raises(Refused, match=reason):
        trained(tmp_path / "second", *both, *later, *counting)
    assert not (tmp_path / "second/ledger.jsonl").exists()


def test_units_are_never_composed():
    client, example = (
        Event(Gaussian(1.0), "full", ZERO_OUT, unit) for unit in ("client", "example")
    )
    with pytest.raises(Unaccountable, match="agree in both"):
        guarantee({client: 1, example: 1}, 1e-5)


ELSEWHERE = {
    "unit of privacy": "test_units_are_never_composed",
    "public clients": "test_who_was_public_once_is_never_covered_afterwards",
    "later charges of a counted run": "test_a_run_that_was_counted_may_not_spend_more",
    "rows per client": "test_more_rows_than_counted_would_break_it",
}
"""Rows that a test of another form holds."""


def test_every_assumption_has_a_test():
    names = [each.name for each in ASSUMPTIONS]
    assert len({*names}) == len(names)
    assert {*names} == {*REFUSED.keys() & {*EVERY}, *FREE, *EQUAL, *ELSEWHERE}
    tests = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [test for test in ELSEWHERE.values() if f"def {test}(" not in tests] == []


def test_a_joint_audit_states_the_adversary_that_it_is_against(tmp_path):
    both, earlier, later = CHARGED["colluders of masks"]
    trained(tmp_path / "a", *both, *earlier)
    trained(tmp_path / "b", *both, *later, "aggregation.byzantine=2")
    result = " ".join(run("audit", tmp_path / "a", tmp_path / "b").output.split())
    assert "at most 30 % of each cohort collude; at most 2 Byzantine clients" in result
    stated = json.loads(run("audit", tmp_path / "a", tmp_path / "b", "--json").stdout)
    assert (stated["assumes"]["colluders"], stated["assumes"]["byzantine"]) == (0.3, 2)
    bound = audit_together([tmp_path / "a", tmp_path / "b"]).bound
    own = Ledger.load(tmp_path / "b/ledger.jsonl").run_spending
    assert bound.epsilon == pytest.approx(guarantee({next(iter(own)): 4}, 1e-4).epsilon, rel=1e-6)
