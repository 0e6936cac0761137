"""A run while it runs: one live line on a terminal of any width, and few lines in a log."""

import io
import re

import pytest
from lanes import every_case
from small import small, trained

from privfed.report.console import SteadyConsole
from privfed.report.progress import MOST_LINES, LiveProgress, PlainProgress, progress
from privfed.run.outcome import RoundRecord
from privfed.run.train import train


def console(width=100, terminal=False, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding, errors="privfed", write_through=True)
    return SteadyConsole(file=file, width=width, markup=False, force_terminal=terminal)


def shown(screen):
    return screen.file.buffer.getvalue().decode(screen.encoding)


def play(observer, path, *keys, train=train):
    with observer:
        return train(small(*keys), path, [observer])


AUTO = "model.name=mlp", "client.lr=auto", "privacy.clip=auto", "run.rounds=4"


def test_a_log_announces_the_choice_of_each_key_once_and_then_the_values(tmp_path):
    screen = console(200)
    play(PlainProgress(screen), tmp_path / "run", *AUTO)
    first, second, *_ = shown(screen).splitlines()
    assert first == 'choosing client.lr ("auto"): 9 simulated runs'
    assert second == 'choosing privacy.clip ("auto"): 6 simulated runs'
    assert re.search(r"client.lr = \d\S* and privacy.clip = \d\S*: chosen from", shown(screen))


def test_a_terminal_redraws_the_choice(tmp_path, monkeypatch):
    screen, drawn = console(200, terminal=True), []
    with LiveProgress(screen) as live:
        monkeypatch.setattr(live._live, "start", lambda: drawn.append(live._line().plain))
        train(small(*AUTO), tmp_path / "run", [live])
    chosen = [f"simulated run {n} of {count}" for count in (9, 6) for n in range(1, count + 1)]
    assert [line.partition(": ")[2] for line in drawn[:-1]] == chosen
    assert drawn[-1].startswith("round 0/4")


def lines_of(text):
    return re.findall(r"^round (\d+)/", text, re.MULTILINE)


def test_a_log_shows_every_evaluation_of_a_short_run(tmp_path):
    screen = console()
    play(PlainProgress(screen), tmp_path / "run")
    assert lines_of(shown(screen)) == ["2", "4", "6", "7"]


@pytest.mark.slow
def test_a_log_of_many_evaluations_shows_few_and_the_last(tmp_path):
    screen = console()
    play(PlainProgress(screen), tmp_path / "run", "run.rounds=51", "run.evaluate_every=1")
    lines = lines_of(shown(screen))
    assert MOST_LINES // 2 < len(lines) <= MOST_LINES
    assert lines[:3] == ["1", "2", "4"]
    assert lines[-1] == "51"


def record(round, warning=""):
    return RoundRecord(round, {"accuracy": 0.5, "loss": 1.0, "epsilon": 1.0}, {}, warning)


def test_warnings_are_always_shown_and_the_last_evaluation_wherever_a_run_stops():
    screen = console()
    with PlainProgress(screen) as observer:
        observer._rounds, observer._every = 1000, 100
        for round in range(1, 251):
            observer.after(record(round, "diverges" if round == 42 else ""))
    assert lines_of(shown(screen)) == ["1", "100", "200", "250"]
    assert "round 42: WARNING: diverges" in shown(screen)


@every_case("width", [20, 60, 100, 200])
def test_a_terminal_shows_one_line_that_fits(tmp_path, width):
    screen = console(width, terminal=True)
    play(LiveProgress(screen), tmp_path / "run")
    text = shown(screen)
    last = re.split("[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).rstrip())[-1]
    assert "7/7" in last
    assert len(last) < width
    if width >= 60:
        assert re.search(r"at 7: .*%  ε \d.*[▁-█]|[▁-█].*at 7: .*%  ε \d", last)


def test_a_terminal_without_greek_survives_it(tmp_path):
    screen = console(80, terminal=True, encoding="latin-1")
    play(LiveProgress(screen), tmp_path / "run")
    assert "epsilon" in shown(screen)
    assert "?" not in re.sub(r"\x1b\[\?25[lh]", "", shown(screen))


def test_nothing_that_no_epsilon_covers_is_in_it():
    for screen, kind in ((console(200, True), LiveProgress), (console(), PlainProgress)):
        with kind(screen) as observer:
            observer.after(RoundRecord(1, record(1).public, {"cohort": 4711}))
            if kind is LiveProgress:
                screen.print(observer._line())
        assert "50.00%" in shown(screen)
        assert "4711" not in shown(screen)


def test_a_dumb_terminal_and_a_pipe_get_lines(monkeypatch):
    assert type(progress(console())) is PlainProgress
    assert type(progress(console(terminal=True))) is LiveProgress
    monkeypatch.setenv("TERM", "dumb")
    assert type(progress(console(terminal=True))) is PlainProgress


def test_where_a_run_goes_on_the_lines_are_those_of_the_rounds_that_are_left(tmp_path):
    trained(tmp_path / "run")
    observer = PlainProgress(console())
    with observer:
        from privfed.run.train import resume

        resume(tmp_path / "run", lambda config: config.with_run(rounds=90), [observer])
    assert observer._every == 2
