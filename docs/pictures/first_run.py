"""Draws the README's picture: accuracy and ε by round, of the default run.

    python docs/pictures/first_run.py        # writes first_run.svg beside this file

Noise and cohorts are secret, so that the curve differs a little from run to run.
"""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

import privfed
from privfed.grid.pictures.figures import COLOURS, STYLE


def draw(run: privfed.Run, path: Path) -> None:
    """Draw two panels, one above the other, with text as text."""
    matplotlib.rcParams.update(STYLE)
    rounds = [row["round"] for row in run.metrics]
    constant, budget = run.summary["constant"]["accuracy"], run.config.privacy.epsilon
    figure = Figure(figsize=(7.0, 3.4))
    accuracy, spent = figure.subplots(2, 1, sharex=True)
    accuracy.plot(rounds, [100 * row["accuracy"] for row in run.metrics], color=COLOURS[0])
    accuracy.axhline(100 * constant, color="#777777", linestyle=":")
    accuracy.annotate("best constant prediction", (rounds[-1], 100 * constant + 3), ha="right")
    accuracy.set(ylabel="test accuracy, %", ylim=(0, 100))
    spent.plot(rounds, [row["epsilon"] for row in run.metrics], color=COLOURS[1])
    spent.axhline(budget, color="#777777", linestyle=":")
    spent.annotate("budget", (rounds[0], budget * 0.87))
    delta = run.guarantee.delta
    spent.set(xlabel="round", ylabel=f"ε spent, δ = {delta:g}", ylim=(0, budget * 1.1))
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(privfed.train(temporary=True), Path(__file__).with_name("first_run.svg"))
