"""The success of membership inference in one setting, without privacy and over ε.

    python -m experiments.membership.study

Writes results.csv, advantage.svg and roc.svg into this folder: under ten minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from accounting.durable import write_atomically
from privfed.config.reading import load
from privfed.grid.pictures.figures import COLOURS, DASHES, STYLE
from privfed.privacy_attacks.membership import Exposure, Level, attack_configuration
from privfed.report.membership import exposure_json, roc_picture

HERE = Path(__file__).parent
CASES = {
    "no privacy": "privacy.mechanism=none",
    "clipping only": "privacy.epsilon=inf",
    "ε = 16": "privacy.epsilon=16",
    "ε = 4": "privacy.epsilon=4",
    "ε = 1": "privacy.epsilon=1",
}
SHOWN = ("no privacy", "ε = 4", "ε = 1")
"""Cases in the figure of ROC curves."""
LEVELS: tuple[Level, ...] = ("user", "example")
NAMES = {"loss": "loss threshold", "lira": "LiRA", "lira_offline": "LiRA, offline"}


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    words.add_argument("--shadows", type=int, default=32)
    words.add_argument("--out", type=Path, default=HERE)
    asked = words.parse_args()
    screen = Console()
    exposures: dict[tuple[Level, str], Exposure] = {}
    for level in LEVELS:
        for case, override in CASES.items():
            config = load(HERE / "run.toml", [override])
            with screen.status(f"{level}, {case}"):
                exposure = attack_configuration(config, level, asked.shadows, 0, lambda *_: None)
            exposures[level, case] = exposure
            best = {name: round(curve.auc, 3) for name, curve in exposure.curves.items()}
            screen.print(
                f"{level}, {case}: accuracy {exposure.score:.3f}, AUC {best}", highlight=False
            )
    asked.out.mkdir(parents=True, exist_ok=True)
    write_atomically(asked.out / "results.csv", table(exposures).encode())
    panels = {f"users, {case}": exposures["user", case] for case in SHOWN}
    write_atomically(asked.out / "roc.svg", roc_picture(panels, "svg"))
    write_atomically(asked.out / "advantage.svg", advantages(exposures))


def table(exposures: dict[tuple[Level, str], Exposure]) -> str:
    """Returns CSV with a line for each level, case and attack."""
    lines: list[dict[str, Any]] = []
    for (level, case), exposure in exposures.items():
        facts = exposure_json(exposure)
        for attack, numbers in facts["attacks"].items():
            line = {"level": level, "case": case, "epsilon": facts["epsilon"], "attack": attack}
            line |= {"accuracy": exposure.score, "auc": numbers["auc"]}
            line |= {"advantage": numbers["advantage"], "bound": facts["advantage_bound"]}
            for rate in numbers["tpr_at_fpr"]:
                at = f"at_{rate['fpr']:g}"
                line |= {f"{key}_{at}": rate[key] for key in ("tpr", "low", "high", "bound")}
            line |= {"members": facts["members"], "nonmembers": facts["nonmembers"]}
            lines.append({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in line.items()})
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def advantages(exposures: dict[tuple[Level, str], Exposure]) -> bytes:
    """Draws the largest TPR - FPR of each attack over the cases, the bound by ε, and chance."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        canvas, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.4), sharey=True)
        for place, level in zip(axes, LEVELS, strict=True):
            each_case = [exposures[level, case] for case in CASES]
            for name, colour, dash in zip(NAMES, COLOURS, DASHES, strict=False):
                heights = [exposure.curves[name].advantage for exposure in each_case]
                place.plot(heights, dash, color=colour, marker="o", markersize=4, label=NAMES[name])
            most = [exposure_json(exposure)["advantage_bound"] for exposure in each_case]
            place.plot(most, ":", color="black", label="(ε, δ) bound")
            place.axhline(by_chance(each_case[0]), color="#888888", linewidth=0.8, label="chance")
            place.set_xticks(range(len(CASES)), list(CASES), rotation=30, ha="right")
            place.set(title=f"{level}s", ylim=(0, 1.05))
        axes[0].set_ylabel("advantage (TPR - FPR)")
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        out = io.BytesIO()
        canvas.savefig(out, format="svg", metadata={"Date": None})
        pyplot.close(canvas)
    return out.getvalue()


def by_chance(exposure: Exposure) -> float:
    """Returns the mean of the largest TPR - FPR for uninformative scores: √(π/2) ln 2 √(1/m + 1/n).

    Kolmogorov's distribution has the mean √(π/2) ln 2.
    """
    curve = next(iter(exposure.curves.values()))
    spread = np.sqrt(1 / curve.members + 1 / curve.nonmembers)
    return float(np.sqrt(np.pi / 2) * np.log(2) * spread)


if __name__ == "__main__":
    main()
