"""What cells of a grid over the same people guarantee together, before and after they run."""

import json
from collections import Counter

from click.testing import CliRunner
from grids import BASE, in_process, of, table, write
from lanes import every_case
from rich.console import Console

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, Event
from accounting.guarantee import TIGHTEST, guarantee
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled, Unprotected
from privfed.cli.main import main
from privfed.grid import cell_charges
from privfed.grid import engine as experiment
from privfed.grid import joint_guarantee as joint
from privfed.grid.cell_charges import charged, planned_charges, population_of, uncounted
from privfed.grid.cells import candidate_cells
from privfed.grid.joint_guarantee import joints
from privfed.grid.load import load_grid
from privfed.grid.planned_guarantee import outlook
from privfed.grid.results import Files
from privfed.grid.tables import read_table
from privfed.plan.assumed import Assumed
from privfed.plan.prior_spending import Prior, Priors
from privfed.report.grid import experiment_table
from privfed.run.train import train

DELTA = 1e-3
EVENT, OTHER = (Event(PoissonSampled(0.2, Gaussian(z)), "poisson") for z in (2.0, 3.0))
PEOPLE = """
[data]
source = "table"
path = "people.csv"
client = "patient"
label = "y"
classes = 2
features = { a = [0.0, 1.0] }
clients = 10
holdout = "clients"
holdout_fraction = 0.4
[cohort]
size = 4
[privacy]
noise_multiplier = 2.0
delta = 1e-3
[run]
rounds = 2
trainer = "loop"
"""
SEEDS = 'base = "base.toml"\nseeds = [0, 1, 2]\n[grid]\n"client.lr" = [0.1, 0.5]\n'


def population(folder, grid=SEEDS, base=PEOPLE):
    """A grid over real people, and its file."""
    path = write(folder, grid, base.replace("people.csv", str(folder / "people.csv")))
    rows = [f"p{n % 12},{n / 36},{n % 2}" for n in range(36)]
    (folder / "people.csv").write_text("\n".join(["patient,a,y", *rows]))
    return path


def spend(cell, folder, rounds=3, event=EVENT, run="run", **terms):
    """What a run of `cell` would leave, had it been charged `rounds` times."""
    path = folder / "cells" / cell.name / run
    path.mkdir(parents=True)
    stated = {
        "id": f"{cell.name[:8]}{run}",
        "delta": DELTA,
        "accountant": TIGHTEST,
        "unit": event.unit,
        "relation": event.relation,
        "randomness": "secret",
        "population": {"unit": population_of(cell, cell.config)[0]},
        **terms,
    }
    ledger = Ledger.create(path / "ledger.jsonl", stated)
    for round in range(1, rounds + 1):
        ledger.charge(round, event)
    return ledger


def together(cells, folder):
    spent = [share for cell in cells for share in charged(cell, folder / "cells" / cell.name)]
    return joints(spent, uncounted(folder / "cells", {cell.name for cell in cells}))


def epsilon(**counts):
    """Of `e` rounds of EVENT and `o` of OTHER."""
    spending = Counter({EVENT: counts.get("e", 0), OTHER: counts.get("o", 0)})
    return guarantee(+spending, DELTA).epsilon


def run(path, *words):
    return CliRunner().invoke(main, ["experiment", str(path), "--jobs", "1", *words])


def stated(result):
    return json.loads(result.stdout[result.stdout.index("{") :])["joint"]


TUNED = """
base = "base.toml"
seeds = [0, 1]
[tune]
seeds = [7]
[tune.over]
"client.lr" = [0.1, 0.5]
"""


def test_a_grid_over_people_forecasts_and_states_one_epsilon(tmp_path, monkeypatch):
    """Whatever the seed, and those that it was tuned on included."""
    monkeypatch.setattr(experiment, "work", in_process)
    path = population(tmp_path, TUNED)
    before = sorted(tmp_path.rglob("*"))
    (ahead,) = stated(run(path, "--dry-run", "--json"))
    assert sorted(tmp_path.rglob("*")) == before
    result = run(path, "--json")
    assert result.exit_code == 0, result.output
    (found,) = stated(result)
    ledgers = [Ledger.load(path) for path in tmp_path.glob("cells/*/run/ledger.jsonl")]
    spent = sum((Counter(ledger.run_spending) for ledger in ledgers), Counter())
    assert spent.total() == 8
    assert found["epsilon"] == ahead["epsilon"] == guarantee(spent, DELTA).epsilon
    assert (found["cells"], ahead["cells"]) == (4, 4)
    assert not found["at_most"]
    assert "factor" in found["groups"][0]["meaning"]
    note, chosen = found["notes"]
    assert chosen == joint.NOT_CHOSEN
    assert note.endswith("clients that any of these cells declared public are not covered")
    assert 0 < int(note.split()[0]) <= 12
    for row in [*table(path), *read_table(tmp_path / "grid.summary.csv")]:
        assert float(row["joint_epsilon"]) == found["epsilon"]
        assert int(row["joint_cells"]) == 4
    assert "joint ε" in result.stderr
    assert "over all 4 cells, add/remove" in result.stderr
    (again,) = stated(run(path, "--dry-run", "--json"))
    assert again["epsilon"] == found["epsilon"], "what is done is counted once"


def test_made_up_people_are_those_of_a_seed(tmp_path):
    path = write(tmp_path, SEEDS, BASE)
    found = outlook(Files(path, tmp_path), load_grid(path), of(path), False).joint
    assert [len(joint.cells) for joint in found] == [2, 2, 2]
    assert len({joint.identity for joint in found}) == 3
    (same,) = {joint.epsilon for joint in found}
    shown = run(path, "--dry-run").stdout
    assert "over both cells" in shown
    assert "simulated, each of the seeds 0, 1, 2" in shown
    assert f"{same:.3f}"[:-1] in shown


def test_charges_count_however_a_cell_ended_and_a_run_counts_once(tmp_path):
    cells = of(population(tmp_path))
    spend(cells[0], tmp_path, 5)
    spend(cells[1], tmp_path, 1, OTHER)  # failed, or cut off
    spend(cells[2], tmp_path, 2, run="run.broken-1")  # set aside, and trained afresh
    spend(cells[2], tmp_path, 3)
    for where, rounds in (("run.broken-1", 4), ("run", 3)):  # which repeats what it released
        spend(cells[3], tmp_path, rounds, run=where, randomness="seeded", note="simulation: x")
    spend(cells[4], tmp_path, 0)
    (found,) = together(cells, tmp_path)
    assert found.epsilon == epsilon(e=5 + 2 + 3 + 4, o=1)
    assert found.cells == {cell.name for cell in cells[:4]}
    assert found.nominal
    assert found.columns(cells[0].name)["joint_epsilon"] == found.epsilon


@every_case(
    "edit",
    [lambda text: text[5:], lambda text: text.replace(b"charge", b"\xff", 1), lambda _: b"{}\n"],
)
def test_what_cannot_be_read_is_not_left_out(tmp_path, edit):
    cells = of(population(tmp_path))
    spend(cells[0], tmp_path)
    broken = spend(cells[1], tmp_path).path
    broken.write_bytes(edit(broken.read_bytes()))
    (found,) = together(cells, tmp_path)
    assert found.epsilon == float("inf")
    assert found.void == ("the charges of an unreadable ledger are unknown in 1 of 2 cells",)
    assert found.groups[0].bound.epsilon == epsilon(e=3)


REPLACED = Event(Gaussian(2.0), "full", REPLACE_ONE)
ZEROED = Event(Gaussian(2.0), "full", ZERO_OUT)


@every_case(
    "event, terms, differ",
    [
        (REPLACED, {}, "adjacency relation"),
        (EVENT, {"delta": 1e-4}, "δ"),
        (Event(EVENT.release, "poisson", ADD_REMOVE, "site"), {}, "unit"),
        (
            ZEROED,
            {"against": "server", "assumes": Assumed(colluders=0.1, byzantine=0).to_json()},
            "adjacency relation, party, trusted parties, colluders, Byzantine clients",
        ),
    ],
)
def test_what_no_composition_is_over_stands_in_groups(tmp_path, event, terms, differ):
    path = population(tmp_path)
    cells = of(path)
    for cell in cells[:4]:
        spend(cell, tmp_path)
    for cell in cells[4:]:
        spend(cell, tmp_path, 3, event, **terms)
    (found,) = together(cells, tmp_path)
    assert found.epsilon is None
    assert ", ".join(found.differ) == differ
    first, second = (group.bound for group in found.groups)
    assert first.epsilon == epsilon(e=12)
    assert second.epsilon == guarantee({event: 6}, terms.get("delta", DELTA)).epsilon
    assert second.against == terms.get("against", "")
    columns = found.columns(cells[5].name)
    assert (columns["joint_epsilon"], columns["joint_cells"]) == (second.epsilon, 2)
    assert columns["joint_note"] == f"these cells differ in {differ}; {joint.NOT_CHOSEN}"
    shown = printed(path, found)
    assert f"there is no single ε over all 6 cells, which differ in {differ}" in shown
    assert "over 4 cells" in shown
    assert "over 2 cells" in shown


def printed(path, *found, width=80):
    screen = Console(width=width, record=True, quiet=False)
    counts = dict.fromkeys(("cells", "done", "refused", "failed", "waiting"), 0)
    with screen.capture() as captured:
        screen.print(experiment_table(experiment.Experiment(Files(path, path), counts, found)))
    lines = captured.get().splitlines()
    assert all(len(line) <= width for line in lines)
    return " ".join(" ".join(lines).split())


@every_case(
    "event, terms, why",
    [
        (Event(Unprotected("no noise"), "poisson"), {}, "no noise"),
        (Event(PoissonSampled(0.2, Gaussian(0.0)), "poisson"), {}, "no noise"),
        (REPLACED, {"guarantee": "void (attacked)"}, "void (attacked)"),
    ],
)
def test_a_cell_that_promises_nothing_undoes_what_all_promise(tmp_path, event, terms, why):
    path = population(tmp_path)
    cells = of(path)
    spend(cells[0], tmp_path, 1, event, **terms)
    for cell in cells[1:]:
        spend(cell, tmp_path)
    (found,) = together(cells, tmp_path)
    assert found.epsilon == float("inf")
    assert found.void == (f"{why} in 1 of 6 cells",)
    assert [group.bound.epsilon for group in found.groups] == [epsilon(e=15)]
    assert {found.columns(cell.name)["joint_epsilon"] for cell in cells} == {float("inf")}
    shown = printed(path, found)
    assert f"∞ over all 6 cells: {why} in 1 of 6 cells the others: " in shown


def test_earlier_runs_enter_once_and_never_beside_themselves(tmp_path):
    cells = of(population(tmp_path))
    charges = [[OTHER.to_json(), 4]]
    prior = {"run": "runs/a", "id": "a", "head": "00" * 32, "charges": charges}
    first = spend(cells[0], tmp_path, prior=[prior])
    counted = {
        "run": "here",
        "id": first.terms["id"],
        "head": first.head().hex(),
        "charges": [[EVENT.to_json(), 3]],
    }
    spend(cells[1], tmp_path, prior=[prior, counted])
    (found,) = together(cells, tmp_path)
    assert found.epsilon == epsilon(e=6, o=4)
    spend(cells[2], tmp_path, prior=[{**prior, "charges": [[REPLACED.to_json(), 1]], "id": "b"}])
    (found,) = together(cells, tmp_path)
    assert found.void == ("no accountant bounds 3 of 3 cells at δ = 0.001",)


def test_single_examples_have_an_epsilon_where_all_cells_protect_them(tmp_path):
    cells = of(population(tmp_path))
    step = Event(PoissonSampled(0.3, Gaussian(1.5)), "poisson", ADD_REMOVE, "example")
    bare = Event(Unprotected("no noise"), "full")
    terms = {"examples": {"event": step.to_json(), "delta": 1e-4}}
    for cell in cells[:3]:
        spend(cell, tmp_path, 2, bare, **terms)
    (found,) = together(cells, tmp_path)
    assert found.epsilon == float("inf")
    assert found.examples == guarantee({step: 6}, 1e-4)
    assert found.to_json()["examples"]["unit"] == "example"
    spend(cells[3], tmp_path)
    (found,) = together(cells, tmp_path)
    assert found.examples is None
    assert "no ε covers single examples: no client.privacy in 1 of 4 cells" in found.notes


def test_tuning_that_chooses_what_is_spent_is_forecast_at_its_most(tmp_path):
    path = population(tmp_path, TUNED.replace('"client.lr" = [0.1, 0.5]', '"cohort.size" = [2, 5]'))
    (found,) = outlook(Files(path, tmp_path), load_grid(path), of(path), False).joint
    little, much = (Event(PoissonSampled(q, Gaussian(2.0)), "poisson") for q in (0.2, 0.5))
    assert found.at_most
    assert found.epsilon == guarantee({little: 2 + 4, much: 2 + 4}, DELTA).epsilon
    assert "at most " in printed(path, found)


def test_what_tuning_was_charged_counts_whatever_it_chooses(tmp_path):
    """An option that an earlier grid trained may be left unchosen, and was released."""
    path = population(tmp_path, TUNED.replace('"client.lr" = [0.1, 0.5]', '"cohort.size" = [2, 5]'))
    grid, cells, files = load_grid(path), of(path), Files(path, tmp_path)
    small, large = next(slot for slot in candidate_cells(path, grid) if slot[0].seed == 0)
    little, much = (Event(PoissonSampled(q, Gaussian(2.0)), "poisson") for q in (0.2, 0.5))
    spend(large, tmp_path, 2, much)
    (tmp_path / "cells" / large.name / "result.json").write_text(
        json.dumps({"status": "done", "version": experiment.__version__, "outcome": {}})
    )
    (found,) = outlook(files, grid, cells, False).joint
    assert found.at_most
    spent = Counter({little: 4, much: 4}) + Counter({much: 2, little: 2})
    assert found.epsilon == guarantee(spent, DELTA).epsilon
    spend(small, tmp_path, 1, little)
    (half,) = outlook(files, grid, cells, False).joint
    assert half.epsilon == found.epsilon, "what it was charged is part of what it will have been"


def test_starts_of_all_that_one_cell_ran_count(tmp_path):
    cells = of(population(tmp_path))
    origin = {"id": "x", "population": {}, "head": "00"}
    for run, runs in (("run", []), ("run.broken-1", [origin])):
        started = {"runs": runs, "unknown": False}
        spend(cells[0], tmp_path, run=run, randomness="seeded", note="s", lineage=started)
    (found,) = together(cells, tmp_path)
    assert "not counted: x" in found.groups[0].bound.uncovered
    shares = [*charged(cells[0], tmp_path / "cells" / cells[0].name)]
    assert joints(shares[::-1], {})[0].groups[0].bound.uncovered


def test_clients_of_other_columns_of_one_table_are_the_same_people(tmp_path):
    grid = 'base = "base.toml"\nseeds = [0]\n[grid]\n"data.client" = ["patient", "ward"]\n'
    path = population(tmp_path, grid + '"client.lr" = [0.1, 0.5]\n')
    rows = [f"p{n % 12},w{n % 11},{n / 36},{n % 2}" for n in range(36)]
    (tmp_path / "people.csv").write_text("\n".join(["patient,ward,a,y", *rows]))
    (found,) = outlook(Files(path, tmp_path), load_grid(path), of(path), False).joint
    assert found.epsilon is None
    assert found.differ == ("unit (client column)",)
    assert [len(group.cells) for group in found.groups] == [2, 2]
    assert found.about == "clients of table (patient), clients of table (ward)"
    assert "there is no single ε over all 4 cells, which differ in unit (client column)" in printed(
        path, found
    )
    for cell in of(path):
        spend(cell, tmp_path)
    (found,) = together(of(path), tmp_path)
    assert [group.bound.epsilon for group in found.groups] == [epsilon(e=6)] * 2
    assert "they" not in found.columns(of(path)[0].name)["joint_note"]
    (rest,) = together(of(path)[::2], tmp_path)
    assert rest.notes[-1].startswith("2 runs under cells/ over the same population")


def test_one_accounting_for_each_group(tmp_path, monkeypatch):
    cells = of(population(tmp_path, SEEDS.replace("[0, 1, 2]", str([*range(20)]))))
    for cell in cells:
        spend(cell, tmp_path, 1)
    asked = []
    monkeypatch.setattr(joint, "guarantee", lambda *of: asked.append(of) or guarantee(*of))
    (found,) = together(cells, tmp_path)
    assert found.groups[0].bound.rounds == 40
    assert [dict(spending) for spending, *_ in asked] == [{EVENT: 40}]


def test_runs_of_other_grids_are_named_and_not_counted(tmp_path):
    path = population(tmp_path)
    for cell in of(path):
        spend(cell, tmp_path)
    rest = of(population(tmp_path, SEEDS.replace("[0, 1, 2]", "[0]")))
    (found,) = together(rest, tmp_path)
    assert found.epsilon == epsilon(e=6)
    chosen, note = found.notes
    assert chosen == joint.NOT_CHOSEN
    assert note.startswith(
        "4 runs under cells/ over the same population are not cells of this grid"
    )


@every_case(
    "keys",
    [
        {"cohort.sampler": ["cyclic"], "cohort.separation": [3]},
        {"privacy.mechanism": ["none"], "run.randomness": ["seeded"]},
        {"attack.name": ["alie"], "attack.fraction": [0.5]},
        {"privacy.mechanism": ["skellam"], "secure.protocol": ["masks"], "cohort.size": [8]},
        {
            "data.setting": ["cross_silo"],
            "privacy.mechanism": ["none"],
            "client.privacy.mechanism": ["dp_sgd"],
            "client.privacy.sampling_rate": [0.3],
            "client.privacy.noise_multiplier": [1.5],
        },
    ],
)
def test_what_is_planned_is_what_is_charged(tmp_path, keys):
    listed = [f'"{key}" = {json.dumps(values)}' for key, values in keys.items()]
    path = write(tmp_path, "\n".join(['base = "base.toml"', "[grid]", *listed]), BASE)
    (cell,) = of(path)
    ahead = planned_charges(cell)
    train(cell.config, tmp_path / "cells" / cell.name / "run")
    (share,) = charged(cell, tmp_path / "cells" / cell.name)
    assert (ahead.run.spending, ahead.run.examples) == (share.run.spending, share.run.examples)
    assert (ahead.population, ahead.about, ahead.key) == (share.population, share.about, share.key)
    assert (ahead.void, ahead.public) == (share.void, share.public)
    for term in ("unit", "relation", "against", "delta", "accountant", "guarantee", "note"):
        assert ahead.terms.get(term) == share.terms.get(term), term
    (found,), (before,) = joints([share], {}), joints([ahead], {})
    assert found == before


def test_earlier_runs_are_forecast_once(tmp_path, monkeypatch):
    earlier = Priors((Prior("runs/a", "a", "00" * 32, {OTHER: 9}),))
    monkeypatch.setattr(cell_charges, "priors", lambda config: earlier)
    path = population(tmp_path)
    (found,) = outlook(Files(path, tmp_path), load_grid(path), of(path), False).joint
    event = Event(PoissonSampled(0.4, Gaussian(2.0)), "poisson")
    assert found.epsilon == guarantee({event: 12, OTHER: 9}, DELTA).epsilon


def test_what_ended_is_forecast_as_it_was_charged(tmp_path):
    """A cell that failed is not run again unless asked; a half-done one goes on to its end."""
    path = population(tmp_path)
    cells, files = of(path), Files(path, tmp_path)
    for cell in cells[:2]:
        spend(cell, tmp_path, 1, Event(PoissonSampled(0.4, Gaussian(2.0)), "poisson"))
    failed = tmp_path / "cells" / cells[0].name / "result.json"
    failed.write_text('{"status": "failed", "reason": "a bug"}')
    ahead = outlook(files, load_grid(path), cells, False)
    assert ahead.joint[0].groups[0].bound.rounds == 1 + 5 * 2
    assert ahead.excluded == {cells[0].name: "failed: a bug"}
    again = outlook(files, load_grid(path), cells, True)
    assert again.joint[0].groups[0].bound.rounds == 6 * 2
