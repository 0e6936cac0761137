"""The tables of runs: legible at any width, and harmless whatever files state."""

import io
from dataclasses import replace
from pathlib import Path

from lanes import every_case

from privfed.report.console import PipeSafeConsole
from privfed.report.runs.compared import Comparison, Difference, Evaluated, Side
from privfed.report.runs.comparison_table import ComparisonTable
from privfed.report.runs.listed import Listing, SamePopulation
from privfed.report.runs.listing_table import RunsTable
from privfed.report.runs.run_row import RunRow

HOSTILE = "a\x1b[31m\nε 0.0001\u202e[red]"
ROW = RunRow(
    run="runs/a",
    id="0",
    state="ended",
    charges=12,
    rounds=12,
    epsilon=1.25,
    delta=1e-5,
    unit="client",
    relation="add/remove",
    sampler="poisson",
    trust="server",
    accountant="tightest",
    measure="accuracy",
    value=0.5,
    constant=0.1,
    population="f" * 64,
    population_digest="f",
    mechanism="gaussian",
    began="2020-01-01T12:00:00+00:00",
    seconds=3.0,
    ledger_head="0" * 64,
)
BOUND = {"epsilon": 1.25, "delta": 1e-5, "unit": "client", "relation": "add/remove"}


def listing(*rows, groups=()):
    return Listing(Path("runs"), rows, groups)


def shown(table, width):
    screen = PipeSafeConsole(
        file=io.StringIO(), width=width, markup=False, color_system=None, force_terminal=True
    )
    with screen.capture() as printed:
        screen.print(table)
    return printed.get()


@every_case("width", [60, 80, 160])
def test_a_line_says_all_of_an_epsilon(width):
    text = shown(RunsTable(listing(ROW)), width)
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    assert "1.2500 [1]" in flat
    assert (
        "at δ = 1e-05, for one client, add/remove, poisson sampling, by tightest, against all but "
        "a trusted server"
    ) in flat
    for fact in ("accuracy 50.00%", "10.00%", "12 of 12", "ffffffff…", "gaussian"):
        assert fact in flat or width < 80, fact  # words of narrow columns are folded
    assert "2020-01-01" in flat


def test_runs_are_a_line_each_where_there_is_room():
    lines = shown(RunsTable(listing(ROW)), 160).splitlines()
    assert "ended" in lines[1]
    assert "3 s" in lines[1]
    assert not lines[2].strip()


def test_epsilons_of_other_meaning_have_another_number():
    others = replace(ROW, run="runs/b", relation="replace-one"), replace(ROW, run="runs/c")
    text = shown(RunsTable(listing(ROW, *others)), 160)
    assert text.count("1.2500 [1]") == 2
    assert text.count("1.2500 [2]") == 1


def test_a_simulation_is_marked_beside_its_epsilon_and_why():
    row = replace(ROW, nominal=True, note="simulation: seeded")
    for width in (80, 160):
        text = shown(RunsTable(listing(row)), width)
        assert "(nominal)" in text
        assert "nominal: simulation: seeded" in " ".join(text.split())


def test_an_empty_folder_says_what_makes_a_run():
    assert "runs has no run directory, down to 3 folders deep" in shown(RunsTable(listing()), 80)


def test_many_runs_about_the_same_people_are_counted():
    runs = tuple(f"runs/{number}" for number in range(9))
    groups = [SamePopulation(f"{n}", runs, (runs,), ()) for n in range(9)]
    text = " ".join(shown(RunsTable(listing(ROW, groups=groups)), 160).split())
    assert "privfed.audit(['runs/0', 'runs/1', 'runs/2', 'runs/3']), with 5 more runs," in text
    assert "and 5 populations more" in text


@every_case("field", ["population", "mechanism", "note", "measure", "unit", "against"])
def test_what_files_state_does_nothing_to_the_terminal(field):
    row = replace(ROW, nominal=field == "note", **{field: HOSTILE})
    broken = replace(ROW, run="runs/" + HOSTILE, state="broken", reason=HOSTILE)
    side = Side(row, ({**BOUND, field: HOSTILE},), row.measure, ())
    difference = Difference(HOSTILE, HOSTILE, None)
    compared = Comparison((side, side), (difference,), (HOSTILE,), None, HOSTILE)
    for table in (RunsTable(listing(row, broken)), ComparisonTable(compared)):
        text = shown(table, 160)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert not [line for line in text.splitlines() if line.strip().startswith("ε 0.0001")]


def test_rounds_are_thinned_and_dashes_stand_where_a_run_was_not_evaluated():
    curve = tuple(Evaluated(r, r / 100, 1.0, r / 10) for r in range(1, 41))
    sides = Side(ROW, (BOUND,), "accuracy", curve), Side(ROW, (BOUND,), "accuracy", curve[:1])
    text = shown(ComparisonTable(Comparison(sides, (), (), None, "no")), 100)
    lines = text[text.index("by round") :].splitlines()
    lines = lines[[line.split()[:1] for line in lines].index(["1"]) :][:8]
    assert lines[0].split() == ["1", "1.00%", "ε", "0.1000", "1.00%", "ε", "0.1000"]
    assert lines[-1].split() == ["40", "40.00%", "ε", "4.0000", "—"]
    assert "no key differs" in text
