"""Earlier runs over the same population count before a new one starts."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from lanes import every_case
from safetensors.torch import save_file
from small import SMALL, small, trained
from tables import population

from accounting.errors import BudgetExceeded
from accounting.guarantee import Gate, guarantee
from accounting.ledger import Ledger
from privfed.auditing.prior_runs import _refuse_uncounted_start, priors
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.config.population_identity import population_identity, same_unit
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.plan.plan import plan
from privfed.plan.prior_spending import Prior, Priors
from privfed.run.train import resume, train
from privfed.store.lineage import Lineage
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import pack, unpack

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
    ledger_read = ledger(tmp_path / "second").run_spending
    both = guarantee(spending_of(first, ledger_read), DELTA)
    assert outcome.guarantee.epsilon == both.epsilon
    assert outcome.charges == 4
    alone = guarantee(ledger_read, DELTA).epsilon
    audited = audit(tmp_path / "second")
    assert not audited.problems
    assert audited.guarantee.epsilon == both.epsilon
    assert (audited.alone.epsilon, audited.charges) == (alone, 4)
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
    assert ledger(tmp_path / "second").prior == ledger(first).run_spending


def test_noise_is_calibrated_to_what_is_left(first, tmp_path):
    budget = guarantee(ledger(first).spending, DELTA).epsilon + 1.5
    free = plan(small("privacy.noise_multiplier=1"))
    config = small(f"privacy.epsilon={budget}", after(first))
    planned = plan(config, priors(config))
    assert planned.guarantee.epsilon == pytest.approx(budget, abs=1e-3)
    assert planned.guarantee.epsilon <= budget
    alone = plan(small(f"privacy.epsilon={budget}"))
    assert planned.noise_multiplier > alone.noise_multiplier > 0
    assert not free.before.runs


def test_the_gate_counts_the_first_run_round_by_round(first, tmp_path):
    """The second run stops where both together reach the budget, long before it alone would."""
    trained(tmp_path / "second", after(first), "run.rounds=2")
    stored = ledger(tmp_path / "second")
    event = next(iter(stored.run_spending))
    budget = guarantee(Counter(stored.spending) + Counter({event: 3}), DELTA).epsilon

    assert guarantee({event: 9}, DELTA).epsilon < budget
    planned = Ledger.load(tmp_path / "second/ledger.jsonl")
    planned.gate = Gate(budget, DELTA, "tightest")
    for round in (3, 4, 5):
        planned.charge(round, event)
    with pytest.raises(BudgetExceeded):
        planned.charge(6, event)


def test_a_resumed_run_stops_at_the_budget_of_both(first, tmp_path):
    """Through the command line: extending within what is left of the budget, and no further."""
    prior = ["--set", after(first)]
    settings = [word for option in SMALL for word in ("--set", option)]
    words = ["--set", "privacy.epsilon=6", "--set", "run.rounds=30", "--out", str(tmp_path / "r")]
    invoked = CliRunner().invoke(main, ["train", *settings, *prior, *words])
    assert invoked.exit_code == 0, invoked.output
    resumed = ["train", "--resume", str(tmp_path / "r"), "--set", "run.rounds=60", "--json"]
    stopped = CliRunner().invoke(main, resumed)
    assert json.loads(stopped.stdout)["epsilon"] == audit(tmp_path / "r").guarantee.epsilon
    assert stopped.exit_code == 3, stopped.output
    assert "earlier runs over" in stopped.stderr
    ledger_read = ledger(tmp_path / "r")
    (event,) = ledger_read.run_spending
    assert guarantee(ledger_read.spending, DELTA).epsilon <= 6
    one_more = Counter(ledger_read.spending) + Counter({event: 1})
    assert guarantee(one_more, DELTA).epsilon > 6
    alone = Counter(ledger_read.run_spending) + Counter({event: 1})
    assert guarantee(alone, DELTA).epsilon < 6, "the earlier run did not matter"


def test_a_chain_of_runs_counts_all_of_them_once(first, tmp_path):
    trained(tmp_path / "second", after(first), "run.rounds=3")
    trained(tmp_path / "third", after(first), "run.rounds=2")
    both = (tmp_path / "second", tmp_path / "third")
    trained(tmp_path / "fourth", after(*both), "run.rounds=1")
    assert sum(ledger(tmp_path / "fourth").spending.values()) == 7 + 3 + 2 + 1
    for names in ((first, *both), (first, first, *both), (*both, first)):
        assert sum(priors(small(after(*names))).spending.values()) == 7 + 3 + 2


def test_a_run_that_was_counted_may_not_spend_more(tmp_path):
    trained(tmp_path / "first", "run.rounds=3")
    trained(tmp_path / "second", after(tmp_path / "first"), "run.rounds=2")
    with pytest.raises(Refused, match=r"counted as an earlier run by .*second"):
        resume(tmp_path / "first", lambda stored: stored.with_run(rounds=9))
    outcome = resume(tmp_path / "second", lambda stored: stored.with_run(rounds=4))
    assert outcome.charges == 4, "the run that counted goes on"


def test_a_counted_run_that_went_on_nevertheless_is_noticed(tmp_path):
    trained(tmp_path / "first", "run.rounds=3")
    trained(tmp_path / "second", after(tmp_path / "first"), "run.rounds=2")
    (tmp_path / "first/counted_by.txt").unlink()
    resume(tmp_path / "first", lambda stored: stored.with_run(rounds=5))
    assert "this epsilon lacks the later charges" in audit(tmp_path / "second").problems[0]
    with pytest.raises(Refused, match="was charged again since"):
        resume(tmp_path / "second", lambda stored: stored.with_run(rounds=4))
    with pytest.raises(Refused, match="has no valid guarantee"):
        priors(small(after(tmp_path / "second")))


def test_a_prior_that_is_still_running_is_refused(first):
    with (
        RunDirectory(first).locked(),
        pytest.raises(Refused, match="in use by another process"),
    ):
        priors(small(after(first)))


def test_a_budget_that_is_already_spent_is_refused(first):
    used = guarantee(ledger(first).spending, DELTA).epsilon
    config = small(f"privacy.epsilon={0.9 * used}", after(first))
    with pytest.raises(Refused, match="earlier runs already spent"):
        plan(config, priors(config))


def test_simulated_clients_are_those_of_the_same_data_and_seed_only(first, tmp_path):
    for other in ("data.size_min=3", "run.seed=1", "data.clients=13"):
        for name in ("", "data.population=ward"):
            with pytest.raises(Refused, match="name only runs over the same"):
                priors(small(after(first), other, *([name] if name else [])))


def test_the_same_people_in_another_file_count_together(tmp_path):
    train(load(None, population(tmp_path / "a.csv")), tmp_path / "first")
    moved = [*population(tmp_path / "b.csv", "abcdefghijkl"), after(tmp_path / "first")]
    assert train(load(None, moved), tmp_path / "second").guarantee.rounds == 4
    other = [o for o in moved if "population" not in o]
    with pytest.raises(Refused, match=r'data\.population = "people"'):
        priors(load(None, other))
    households = [*moved, "data.client=house"]
    with pytest.raises(Refused, match="are not the clients of this run"):
        priors(load(None, households))


def test_who_was_public_once_is_never_covered_afterwards(tmp_path):
    settings = population(tmp_path / "a.csv")
    train(load(None, settings), tmp_path / "first")
    public = set(RunDirectory(tmp_path / "first").public_clients.of_all_runs())
    second = [*settings, after(tmp_path / "first")]
    for changes in (["run.seed=1"], ["run.seed=2"]):
        with pytest.raises(Refused, match="were declared public by an earlier run"):
            train(load(None, [*second, *changes]), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    more = [*second, "data.holdout_fraction=0.6"]
    train(load(None, more), tmp_path / "second")
    assert public < set(RunDirectory(tmp_path / "second").public_clients.of_all_runs())
    third = [*settings, after(tmp_path / "second")]
    with pytest.raises(Refused, match="were declared public by an earlier run") as refused:
        train(load(None, third), tmp_path / "refused")
    assert re.search("'[a-j]'", refused.value.private)
    assert not re.search("'[a-j]'", str(refused.value)), "a client's name is quoted"


def test_clients_that_join_the_public_ones_on_resume_are_refused(tmp_path):
    train(load(None, population(tmp_path / "a.csv")), tmp_path / "run")
    population(tmp_path / "a.csv", "abcdefghijklmnopqrstuvwxyz")
    with pytest.raises(Refused, match="the public clients differ from the ledger"):
        resume(tmp_path / "run", lambda stored: stored.with_run(rounds=4))


def test_an_edited_list_of_public_clients_is_noticed(tmp_path):
    train(load(None, population(tmp_path / "a.csv")), tmp_path / "run")
    path = tmp_path / "run/report/public_clients.json"
    path.write_text(path.read_text().replace('"clients": [', '"clients": ["z", '))
    assert "public clients" in audit(tmp_path / "run").problems[0]
    with pytest.raises(Refused, match="has no valid guarantee"):
        priors(load(None, [*population(tmp_path / "a.csv"), after(tmp_path / "run")]))


def test_a_start_from_the_same_people_has_to_be_counted(tmp_path):
    settings = population(tmp_path / "a.csv")
    train(load(None, [*settings, "privacy.mechanism=none"]), tmp_path / "open")
    for init in (tmp_path / "open", tmp_path / "open/checkpoint.safetensors"):
        with pytest.raises(Refused, match=r"was trained .*on this population"):
            train(load(None, [*settings, f"model.init={init}"]), tmp_path / "refused")
        promising_nothing = [*settings, f"model.init={init}", "privacy.mechanism=none"]
        assert priors(load(None, promising_nothing)).uncovered
    train(load(None, settings), tmp_path / "first")
    counted = [f"model.init={tmp_path / 'first'}", after(tmp_path / "first")]
    assert train(load(None, [*settings, *counted]), tmp_path / "second").guarantee.rounds == 4


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """Settings, and a run over these people."""
    folder = tmp_path_factory.mktemp("patients")
    settings = population(folder / "a.csv")
    train(load(None, settings), folder / "first")
    return settings, folder / "first"


def started(settings, start, *more):
    return load(None, [*settings, f"model.init={start}", *more])


def copied(path, to):
    """A checkpoint elsewhere, without its ledger."""
    to.mkdir(exist_ok=True)
    return Path(shutil.copy(path / "checkpoint.safetensors", to / "copy.safetensors"))


NAMELESS = 'data.population=""'


@every_case(
    "other",
    [
        (),
        ("run.seed=1",),
        ("data.clients=9",),
        ("data.population=others",),
        (NAMELESS, "run.seed=1"),
        (NAMELESS, "data.clients=9"),
    ],
)
def test_a_start_is_recognised_whatever_else_differs(patients, tmp_path, other):
    """By its own metadata, or by the ledger beside a checkpoint that carries none."""
    settings, first = patients
    tensors, facts = unpack(first / "checkpoint.safetensors")
    del facts["lineage"]
    older = tmp_path / "older"
    older.mkdir()
    shutil.copy(first / "ledger.jsonl", older)
    (older / "checkpoint.safetensors").write_bytes(pack(tensors, facts))
    for start in (first, copied(first, tmp_path), older, older / "checkpoint.safetensors"):
        with pytest.raises(
            Refused, match=r"may share clients.*privacy\.prior = .*privacy\.disjoint"
        ):
            priors(started(settings, start, *other))
    moved = [*population(tmp_path / "b.csv"), *other]
    with pytest.raises(Refused, match="may share clients"):
        priors(started(moved, copied(first, tmp_path)))
    if not any("population" in key for key in other):
        counted = priors(started(settings, copied(first, tmp_path), *other, after(first)))
        assert sum(counted.spending.values()) == 2
        assert not counted.uncovered


def test_a_start_that_is_counted_costs_what_both_cost(patients, tmp_path):
    settings, first = patients
    start = copied(first, tmp_path)
    config = started(settings, start, after(first), "data.clients=9")
    outcome = train(config, tmp_path / "second")
    both = Counter(ledger(first).run_spending) + Counter(ledger(tmp_path / "second").run_spending)
    assert outcome.guarantee.epsilon == guarantee(both, DELTA).epsilon
    assert outcome.to_json()["uncovered"] is None
    assert "the runs that trained it are counted" in said("audit", tmp_path / "second") + said(
        "check", *sets([*settings, f"model.init={start}", after(first)])
    )


def sets(settings):
    return [word for option in settings for word in ("--set", option)]


def said(*words):
    result = CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


DIGITS = ("data.source=digits", "privacy.noise_multiplier=2.0", "privacy.delta=1e-3")


@every_case(
    "there, here, same",
    [
        (DIGITS, ("run.seed=1",), True),
        (DIGITS, ("data.clients=40",), True),
        (DIGITS, ("data.partition=dirichlet",), True),
        (SMALL, ("run.seed=1",), False),
        (SMALL, ("data.clients=10",), True),
        (
            SMALL,
            ("data.source=privfed.data.sources.synthetic:Synthetic", "data.population=b"),
            True,
        ),
        (SMALL, ("data.source=custom_parts:Renamed",), True),
    ],
)
def test_simulated_clients_of_one_source_may_be_the_same_people(tmp_path, there, here, same):
    """However examples are dealt; made from another seed they are others."""
    theirs = {"id": "a run", "population": population_identity(load(None, there))}
    start = tmp_path / "start.safetensors"
    start.write_bytes(pack({}, {"lineage": Lineage.of_run(theirs, "00").to_json()}))
    if same:
        with pytest.raises(Refused, match=r"with its \[data\] and run.seed"):
            priors(started([*there, *here], start))
    else:
        assert "a run" in priors(started([*there, *here], start)).uncovered


def test_a_population_does_not_depend_on_how_a_part_is_spelt(tmp_path):
    settings = population(tmp_path / "a.csv")
    plain = population_identity(load(None, settings))
    for source in ("privfed.data.sources.table:Table", "custom_parts:Sheet"):
        config = load(None, [*settings, f"data.source={source}"])
        assert population_identity(config)["unit"] == plain["unit"] == "table: person"
        assert population_identity(config)["sources"] == plain["sources"]
        older = {"name": "people", "unit": f"{source}: person"}
        assert same_unit(config, older)
    assert same_unit(load(None, settings), {"unit": "privfed.data.sources.table:Table: person"})
    assert population_identity(small()) == population_identity(
        small("data.partition=privfed.data.partitions.basic:Natural")
    )
    shuffled = population_identity(
        load(None, [*settings, "data.partition=shuffled", "data.holdout=test"])
    )
    assert len(shuffled["unit"]) == 64, "whose examples were dealt anew is no client of a file"
    assert shuffled["sources"] == plain["sources"]


UNCOVERED = "this does not cover what the starting model"


def test_a_public_start_works_and_says_what_is_not_covered(tmp_path):
    trained(tmp_path / "bare", "run.rounds=1", "privacy.mechanism=none")
    tensors, _ = unpack(tmp_path / "bare/checkpoint.safetensors")
    start = tmp_path / "public.safetensors"
    bare = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
    save_file(bare, start)
    keys = [*SMALL, "run.rounds=2", f"model.init={start}", "data.population=everybody"]
    assert UNCOVERED in said("check", *sets(keys))
    shown = said("train", *sets(keys), "--out", tmp_path / "a")
    assert shown.count(f"{UNCOVERED} (of unknown origin)") == 2
    # A run that counts it inherits that, as what was released may tell of the start.
    again = [*SMALL, "data.population=everybody", after(tmp_path / "a"), "run.rounds=2"]
    train(load(None, again), tmp_path / "b")
    for paths in ([tmp_path / "a"], [tmp_path / "b"], [tmp_path / "a", tmp_path / "b"]):
        assert UNCOVERED in said("audit", *paths)
        printed = json.loads(said("audit", *paths, "--json"))
        assert printed["uncovered"] == "of unknown origin"
        assert UNCOVERED in printed["guarantees"][0]["meaning"]
        assert printed["guarantees"][0]["uncovered"]
    for path in (tmp_path / "a", tmp_path / "b"):
        summary = json.loads((path / "report/summary.json").read_text())
        assert UNCOVERED in summary["guarantees"][0]["meaning"]
    trained(tmp_path / "fresh", "run.rounds=1")
    assert UNCOVERED not in said("audit", tmp_path / "fresh")


def test_a_start_of_a_start_counts_too(patients, tmp_path):
    """The one between was about others, and lies elsewhere now."""
    settings, first = patients
    others = [*population(tmp_path / "b.csv", column="ward"), f"model.init={first}"]
    others.append("data.population=others")
    between = train(load(None, others), tmp_path / "between")
    assert ledger(first).terms["id"] in between.to_json()["uncovered"]
    start = copied(tmp_path / "between", tmp_path / "elsewhere")
    with pytest.raises(Refused, match=f"by run {ledger(first).terms['id']}"):
        priors(started(settings, start))
    counted = priors(started(settings, start, after(first)))
    assert ledger(tmp_path / "between").terms["id"] in counted.uncovered
    assert ledger(first).terms["id"] not in counted.uncovered


def test_frozen_parts_carry_what_their_start_came_from(tmp_path):
    directory = RunDirectory.create(tmp_path / "run")
    lineage = Lineage.of_run({"id": "a", "population": population_identity(small())}, "00")
    directory.constants.write({"0.weight": torch.zeros(2)}, lineage)
    path = Path(shutil.copy(tmp_path / "run/constants.safetensors", tmp_path / "copy.safetensors"))
    assert Lineage.of_init(str(path)) == lineage
    assert directory.constants.read().keys() == {"0.weight"}


def test_a_start_beyond_what_was_counted_is_refused(patients, tmp_path):
    settings, _ = patients
    train(load(None, settings), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resume(tmp_path / "copy", lambda stored: stored.with_run(rounds=4))
    start = copied(tmp_path / "copy", tmp_path / "elsewhere")
    with pytest.raises(Refused, match="was trained further than"):
        priors(started(settings, start, after(tmp_path / "run")))
    assert priors(started(settings, start, after(tmp_path / "copy")))


@pytest.fixture(scope="module")
def fork(patients, tmp_path_factory):
    """Settings, a run over these people, one that counts it, and a copy of it that went on."""
    settings, _ = patients
    folder = tmp_path_factory.mktemp("fork")
    train(load(None, settings), folder / "run")
    shutil.copytree(folder / "run", folder / "copy")
    train(load(None, [*settings, after(folder / "run")]), folder / "next")
    resume(folder / "copy", lambda stored: stored.with_run(rounds=4))
    return settings, folder


def test_a_foreign_ledger_at_a_counted_path_covers_no_copy_that_went_on(fork, patients, tmp_path):
    settings, folder = fork
    counted = after(folder / "next")  # which counts the run
    beyond = started(settings, copied(folder / "copy", tmp_path), counted)
    moved = tmp_path / "moved"
    with pytest.raises(Refused, match="was trained further than"):
        priors(beyond)
    shutil.move(folder / "run", moved)
    try:
        with pytest.raises(Refused, match="whether a copy was trained further"):
            priors(beyond)
        shutil.copytree(patients[1], folder / "run")  # another run over the same people
        with pytest.raises(Refused, match="whether a copy was trained further"):
            priors(beyond)
        assert not priors(started(settings, moved, counted)).uncovered, "at the head counted"
    finally:
        shutil.rmtree(folder / "run", ignore_errors=True)
        shutil.move(moved, folder / "run")


def test_an_older_state_of_a_counted_run_is_covered_and_the_ledger_says_so(fork, tmp_path):
    settings, folder = fork
    older = copied(folder / "run", tmp_path)
    counted = after(folder / "copy")  # the same run, further on
    config = started(settings, older, counted)
    assert train(config, tmp_path / "b").guarantee.uncovered == ""
    head = ledger(folder / "run").head().hex()
    (stated,) = ledger(tmp_path / "b").terms["prior"]
    assert stated["passed"] == [head]
    shutil.copytree(folder / "copy", tmp_path / "moved")
    shutil.move(folder / "copy", tmp_path / "gone")
    try:
        assert audit(tmp_path / "b").guarantee.uncovered == ""
        with pytest.raises(Refused, match="is not a run"):
            priors(config)
        where = after(tmp_path / "b")
        bare = replace(Prior.from_json(stated), passed=frozenset())
        with pytest.raises(Refused, match="whether a copy was trained further"):
            refuse_start(config, Priors((bare,), lineage=Lineage.of_init(str(older))))
        assert not priors(started(settings, older, where)).uncovered
        beside = shutil.copy(older, tmp_path / "moved/earlier.safetensors")
        bare = Priors((bare,), lineage=Lineage.of_init(str(beside)))
        assert not bare.traced(tmp_path / "moved").uncovered, "told by the ledger beside the start"
        assert "possibly trained further than is counted" in bare.uncovered
    finally:
        shutil.move(tmp_path / "gone", folder / "copy")


def refuse_start(config, counted):
    for origin in counted.lineage.runs:
        _refuse_uncounted_start(config, counted, origin)


def test_what_is_counted_of_a_run_covers_no_start_beyond_it(fork, tmp_path):
    """Whose ledger proves that the model had seen more than is in the sum."""
    folder = fork[1]
    others = [*population(tmp_path / "b.csv", column="ward"), "data.population=others"]
    beyond = copied(folder / "copy", tmp_path)
    train(started(others, beyond), tmp_path / "between")
    (origin,) = Lineage.of_init(str(beyond)).runs
    run, between = (
        Prior.of(str(path), ledger(path)) for path in (folder / "run", tmp_path / "between")
    )
    assert run.run == origin.id
    assert "possibly trained further than is counted" in Priors((run, between)).traced().uncovered
    whole = Prior.of(str(folder / "copy"), ledger(folder / "copy"))
    assert not Priors((whole, between)).traced().uncovered


def test_only_a_runs_own_files_are_what_the_ledger_beside_them_says(fork, tmp_path):
    settings, folder = fork
    shutil.copytree(folder / "run", tmp_path / "run")
    counted = after(folder / "run")
    tensors, facts = unpack(folder / "copy/checkpoint.safetensors")
    del facts["lineage"]
    beyond, bare = pack(tensors, facts), tmp_path / "bare.safetensors"
    save_file(tensors, bare)
    _, facts = unpack(folder / "run/checkpoint.safetensors")
    del facts["lineage"]
    here, frozen = tmp_path / "run/checkpoint.safetensors", tmp_path / "run/constants.safetensors"
    export = tmp_path / "run/export.safetensors"

    def uncovered(start, content):
        start.write_bytes(content)
        return priors(started(settings, start, counted)).uncovered

    assert uncovered(here, pack(tensors, facts)) == ""
    for content in (beyond, bare.read_bytes(), pack(tensors, {})):
        assert uncovered(here, content) == "of unknown origin"
    for start in (export, frozen):
        assert uncovered(start, bare.read_bytes()) == "of unknown origin"
    with pytest.raises(Refused, match="may share clients"):
        priors(started(settings, export))
    silent = RunDirectory(tmp_path / "frozen")
    silent.path.mkdir()
    silent.constants.write({"w": torch.zeros(2)}, Lineage())
    content = pack({"model/w": torch.zeros(2)}, {})
    (silent.path / "constants.safetensors").write_bytes(content)
    terms = {"id": "a", "population": population_identity(small()), "files": silent.companions()}
    Ledger.create(silent.ledger, terms)
    assert not Lineage.of_init(str(silent.path / "constants.safetensors")).unknown
    silent.constants.write({"w": torch.ones(2)}, Lineage())
    assert not Lineage.of_init(str(silent.path / "constants.safetensors")).unknown, "it says so"
    (silent.path / "constants.safetensors").write_bytes(pack({"model/w": torch.ones(2)}, {}))
    assert Lineage.of_init(str(silent.path / "constants.safetensors")).unknown


def test_runs_that_are_declared_disjoint_need_no_counting_and_are_named(patients, tmp_path):
    settings, first = patients
    declared = f"privacy.disjoint={json.dumps([str(first)])}"
    keys = [
        *population(tmp_path / "b.csv"),
        "data.population=others",
        f"model.init={first}",
        declared,
    ]
    assert "as privacy.disjoint declares" in said("check", *sets(keys))
    shown = said("train", *sets(keys), "--out", tmp_path / "next")
    assert shown.count("as privacy.disjoint declares") == 2
    found = ledger(tmp_path / "next")
    run = ledger(first).terms["id"]
    assert found.terms["disjoint"] == [{"run": str(first), "id": run}]
    assert not found.prior
    told = json.loads(said("audit", tmp_path / "next", "--json"))
    assert told["disjoint"] == [str(first)]
    assert run in told["uncovered"]
    assert UNCOVERED in said("audit", tmp_path / "next")
    resumed = resume(tmp_path / "next", lambda stored: stored.with_run(rounds=3))
    assert run in resumed.guarantee.uncovered
    with pytest.raises(Refused, match="is counted in"):
        priors(load(None, [*keys, after(first), "data.population=people"]))
    with pytest.raises(Refused, match="has this run's population"):
        priors(load(None, [*settings, declared]))
    with pytest.raises(Refused, match="not a run directory"):
        priors(load(None, [*settings, f'privacy.disjoint=["{tmp_path}"]']))


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
    with pytest.raises(Refused, match="has no valid guarantee"):
        priors(small(after(tmp_path / "edited")))


def test_the_command_line_says_what_was_spent_before(first, tmp_path):
    settings = [word for option in (*SMALL, after(first)) for word in ("--set", option)]
    checked = CliRunner().invoke(main, ["check", *settings])
    assert checked.exit_code == 0, checked.output
    assert "included; earlier runs over the same population spent" in checked.stdout
    out = str(tmp_path / "second")
    result = CliRunner().invoke(main, ["train", *settings, "--out", out])
    assert "earlier runs included" in result.stdout
    shown = CliRunner().invoke(main, ["audit", out]).stdout
    assert "; earlier runs" in shown


def test_an_edited_prior_breaks_the_ledger(first, tmp_path):
    trained(tmp_path / "second", after(first), "run.rounds=2")
    path = tmp_path / "second/ledger.jsonl"
    text = path.read_text()
    assert text.count(",7]") == 1
    path.write_text(text.replace(",7]", ",1]"))
    assert audit(tmp_path / "second").problems


def test_a_run_is_marked_before_it_is_cited_and_watched_meanwhile(first, tmp_path, monkeypatch):
    """A crash at the new ledger leaves the mark; an extension in between is noticed."""
    trained(tmp_path / "first", "run.rounds=3")

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "create", crash)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "second", after(tmp_path / "first"), "run.rounds=2")
    with pytest.raises(Refused, match="counted as an earlier run"):
        resume(tmp_path / "first", lambda stored: stored.with_run(rounds=9))
    assert resume(tmp_path / "second", lambda stored: stored).charges == 2

    trained(tmp_path / "third", "run.rounds=3")
    real = RunDirectory.mark_counted_by

    def late(self, run):
        resume(tmp_path / "third", lambda stored: stored.with_run(rounds=4))
        real(self, run)

    monkeypatch.setattr(RunDirectory, "mark_counted_by", late)
    with pytest.raises(Refused, match="was charged again since"):
        trained(tmp_path / "fourth", after(tmp_path / "third"), "run.rounds=2")
    assert not (tmp_path / "fourth/ledger.jsonl").exists()


def test_another_run_in_the_place_of_a_counted_one_is_not_marked(tmp_path):
    trained(tmp_path / "a", "run.rounds=1")
    trained(tmp_path / "b", after(tmp_path / "a"), "run.rounds=1")
    assert (tmp_path / "a/counted_by.txt").exists()
    shutil.move(tmp_path / "a", tmp_path / "moved")
    trained(tmp_path / "a", "run.rounds=1")
    trained(tmp_path / "c", after(tmp_path / "b"), "run.rounds=1")
    assert (tmp_path / "b/counted_by.txt").exists()
    assert not (tmp_path / "a/counted_by.txt").exists()
    assert resume(tmp_path / "a", lambda stored: stored.with_run(rounds=2)).charges == 2


def test_no_run_counts_one_that_withstands_fewer_colluding_sites(tmp_path):
    """A run of 5 sites is charged for 3 colluders where 4 shares open a secret, not where 3 do."""
    at_sites = ("data.sites=5", "privacy.mechanism=skellam", "secure.protocol=masks")
    trained(tmp_path / "first", *at_sites, "secure.colluders=0.4", "run.rounds=2")
    again = (*at_sites, after(tmp_path / "first"))
    with pytest.raises(
        Refused,
        match=r"secure\.colluders is 3 in this run, but the earlier run's .* only if at most 2",
    ):
        priors(small(*again, "secure.colluders=0.6"))
    for fewer in ("0.4", "0.2"):
        assert len(priors(small(*again, f"secure.colluders={fewer}")).runs) == 1


def test_no_run_that_trusts_nobody_counts_one_that_trusts_the_server(first, tmp_path):
    """Noise of each site, after noise of a server that saw rows: no epsilon is against both."""
    local = ("data.sites=5", "privacy.mechanism=local_gaussian")
    with pytest.raises(Refused, match="earlier run trusts the server, but this run does not"):
        priors(small(*local, after(first)))
    trained(tmp_path / "local", *local, "run.rounds=2")
    assert len(priors(small(*local, after(tmp_path / "local"))).runs) == 1
    assert len(priors(small("data.sites=5", after(tmp_path / "local"))).runs) == 1
