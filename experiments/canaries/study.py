"""Canaries' estimates and bounds of the claimed epsilon, over noise, and their cost.

    python -m experiments.canaries.study

Writes results.csv and estimates.svg into this folder: some ten minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from accounting.durable import write_atomically
from privfed.auditing.run_audit import audit
from privfed.config.reading import load
from privfed.grid.pictures.figures import COLOURS, STYLE
from privfed.run.train import train

HERE = Path(__file__).parent
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SHOWN = {
    "epsilon_estimate_all_iterates": "estimate, every release",
    "epsilon_estimate_final": "estimate, final model",
    "epsilon_estimate_likelihood": "estimate, by likelihoods",
    "epsilon_lower_bound": "95 % bound, every release",
    "epsilon_lower_bound_final": "95 % bound, final model",
    "epsilon_lower_bound_if_gaussian": "95 % bound if Gaussian",
}


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--out", type=Path, default=HERE)
    asked = words.parse_args()
    screen, rows = Console(), []
    for epsilon in EPSILONS:
        for seed in range(asked.seeds):
            with screen.status(f"ε = {epsilon:g}, seed {seed}"):
                rows.append(measured_run(epsilon, seed))
            screen.print({k: v for k, v in rows[-1].items() if k in SHOWN}, highlight=False)
    asked.out.mkdir(parents=True, exist_ok=True)
    write_atomically(asked.out / "results.csv", table(rows).encode())
    write_atomically(asked.out / "estimates.svg", picture(rows))


def measured_run(epsilon: float, seed: int) -> dict[str, Any]:
    """Returns the evidence of a run with canaries, and its accuracy next to the same run
    without.
    """
    asked = [f"privacy.epsilon={epsilon}", f"run.seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "with"
        outcome = train(load(HERE / "run.toml", asked), path)
        evidence = audit(path).canaries
        plain = load(HERE / "run.toml", [*asked, "audit.canaries=0"])
        without = train(plain, Path(folder) / "without")
    if evidence is None:
        raise ValueError("a run with canaries has evidence")
    costs = {"accuracy": outcome.accuracy, "accuracy_without": without.accuracy}
    return {"epsilon": epsilon, "seed": seed, **asdict(evidence), **costs}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns CSV with a line for each run."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for line in rows:
        writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in line.items()})
    return out.getvalue()


def picture(rows: list[dict[str, Any]]) -> bytes:
    """Draws each estimate and bound over the claim, medians with the range over seeds."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        canvas, axes = pyplot.subplots(figsize=(6.4, 4.0))
        axes.plot(EPSILONS, EPSILONS, ":", color="black", label="claimed")
        for (key, name), colour in zip(SHOWN.items(), COLOURS, strict=False):
            values = [
                [measured_run[key] for measured_run in rows if measured_run["epsilon"] == at]
                for at in EPSILONS
            ]
            middle = [statistics.median(some) for some in values]
            dash = "-" if "estimate" in key else "--"
            axes.plot(EPSILONS, middle, dash, color=colour, marker="o", markersize=4, label=name)
            low, high = [min(some) for some in values], [max(some) for some in values]
            axes.fill_between(EPSILONS, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(xscale="log", xlabel="claimed ε", ylabel="audited ε")
        axes.set_yscale("symlog", linthresh=0.5)
        axes.set_ylim(-0.05, 40)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.set_xticks(EPSILONS)
        axes.minorticks_off()
        axes.set_yticks([0, 0.5, 1, 2, 4, 8, 16, 32])
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        out = io.BytesIO()
        canvas.savefig(out, format="svg", metadata={"Date": None})
        pyplot.close(canvas)
    return out.getvalue()


if __name__ == "__main__":
    main()
