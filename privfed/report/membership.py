"""The table, figure and JSON of a membership inference attack, with the bound that ε implies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.console import Group
from rich.table import Table

from accounting.events import REPLACE_ONE
from accounting.statement import at_delta
from attacks.privacy.roc import Roc, clopper_pearson
from attacks.privacy.tradeoff import advantage_bound, at_distance_two, tpr_bound
from privfed.core.text import ceiling, dump, measure
from privfed.grid.pictures.figures import COLOURS, DASHES
from privfed.privacy_attacks.membership import Exposure
from privfed.report.canvas import canvas, image
from privfed.report.tables import rows

RATES = (0.001, 0.01)
"""The false-positive rates at which true-positive rates are reported."""
CONFIDENCE = 0.95
NOTE = "a simulation: it reads clients' own examples, and no ε covers its results"
ATTACK_NAMES = {"loss": "loss threshold", "lira": "LiRA", "lira_offline": "LiRA, offline"}


def claim(exposure: Exposure) -> tuple[float, float, str]:
    """Returns the ε and δ that bound the attack, and a description of the compared datasets.

    If several runs of a run file are attacked, membership of a client is a Bernoulli draw: the
    datasets with and without the client are neighbouring. If one trained run is attacked, a member
    is compared with a client that never took part: one client replaces another. If membership of an
    example is attacked, the datasets differ in the data of that example's client. A replacement or
    a change of data is one step of replace-one, and two steps (removal and addition) of the other
    relations. For an example, a silo's guarantee for one example is returned if its ε is smaller.
    """
    user = exposure.guarantee
    if exposure.level == "user":
        if exposure.attacked > 1 or user.relation == REPLACE_ONE:
            return user.epsilon, user.delta, f"one client, {user.relation}"
        about = f"one client that replaces another: two steps of {user.relation}"
        return (*at_distance_two(user.epsilon, user.delta), about)
    if user.relation == REPLACE_ONE:
        ways = [(user.epsilon, user.delta, "one client's data, which include the example")]
    else:
        about = "one client's data changed: two steps of the relation"
        ways = [(*at_distance_two(user.epsilon, user.delta), about)]
    if silo := exposure.examples:
        ways.append((silo.epsilon, silo.delta, f"one example of a silo, {silo.relation}"))
    return min(ways)


def exposure_json(exposure: Exposure) -> dict[str, Any]:
    """Returns the object that `privfed attack membership --json` prints."""
    epsilon, delta, about = claim(exposure)
    any_curve = next(iter(exposure.curves.values()))
    return {
        "level": exposure.level,
        "epsilon": epsilon,
        "delta": delta,
        "claim": about,
        "advantage_bound": advantage_bound(epsilon, delta),
        "confidence": CONFIDENCE,
        "attacks": {name: _curve_json(curve, exposure) for name, curve in exposure.curves.items()},
        "targets": exposure.targets,
        "members": any_curve.members,
        "nonmembers": any_curve.nonmembers,
        "attacked_runs": exposure.attacked,
        "shadows": exposure.shadows,
        "seed": exposure.seed,
        exposure.measure: exposure.score,
        "simulation": True,
        "note": NOTE,
        "of": str(exposure.path) if exposure.path else None,
    }


def _curve_json(curve: Roc, exposure: Exposure) -> dict[str, Any]:
    """Returns an attack's area under the curve, advantage, and true-positive rates for `RATES`."""
    rates = [_rate_json(fpr, curve, exposure) for fpr in RATES]
    return {"auc": curve.auc, "advantage": curve.advantage, "tpr_at_fpr": rates}


def _rate_json(fpr: float, curve: Roc, exposure: Exposure) -> dict[str, Any]:
    """Returns the true-positive rate at `fpr`, its confidence interval, and the bound by ε.

    The bound is taken at the upper confidence limit of the false-positive rate. "resolved" states
    whether there are enough non-members to measure a rate as small as `fpr`.
    """
    epsilon, delta, _ = claim(exposure)
    tpr = curve.tpr_at(fpr)
    low, high = clopper_pearson(round(tpr * curve.members), curve.members, CONFIDENCE)
    _, fpr_high = clopper_pearson(round(fpr * curve.nonmembers), curve.nonmembers, CONFIDENCE)
    return {
        "fpr": fpr,
        "tpr": tpr,
        "low": low,
        "high": high,
        "bound": float(tpr_bound(np.array([max(fpr, fpr_high)]), epsilon, delta)[0]),
        "resolved": curve.resolves(fpr),
    }


def exposure_table(exposure: Exposure, folder: Path) -> Group:
    """Returns a table of each attack's success and of the largest success that ε allows.

    Notes below it state the attacked runs and the limits of these numbers. `folder` is the folder
    of the result's files.
    """
    epsilon, delta, about = claim(exposure)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("attack", "AUC", "advantage", *(f"TPR at {rate:.1%} FPR" for rate in RATES)):
        table.add_column(head, no_wrap=True)
    for name, curve in exposure.curves.items():
        rates = [_rate(_rate_json(fpr, curve, exposure), curve) for fpr in RATES]
        table.add_row(ATTACK_NAMES[name], f"{curve.auc:.3f}", f"{curve.advantage:.3f}", *rates)
    bounds = [f"{bound:.2%}" for bound in tpr_bound(np.array(RATES), epsilon, delta)]
    most = f"{advantage_bound(epsilon, delta):.3f}"
    table.add_row(f"ε = {ceiling(epsilon)} allows", "", most, *bounds, style="cyan")
    return Group(table, "", rows(dict(_facts(exposure, about, delta, folder))))


def _facts(exposure: Exposure, about: str, delta: float, folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the attacked runs, the number of trials, and caveats about the numbers.

    `about` and `delta` are those of `claim`; `folder` has the result's files.
    """
    curve, several = next(iter(exposure.curves.values())), exposure.attacked > 1
    trained = f"{exposure.attacked} runs" if several else f"the run {exposure.path}"
    each = ", each in turn with the others as shadows" if several else ""
    yield "attacked", f"{trained}{each}; {exposure.shadows} shadow runs"
    yield "trials", f"{curve.members} members, {curve.nonmembers} non-members: {exposure.others}"
    yield "ε", f"{at_delta(delta)}, for {about}"
    score = measure(exposure.measure, exposure.score)
    yield exposure.measure, f"{score} on the public test examples"
    yield "intervals", "Clopper-Pearson, 95 %; trials of one run share its noise"
    if not curve.resolves(RATES[0]):
        least = math.ceil(1 / RATES[0])
        how = "take more --shadows" if several else f"attack {exposure.path}/config.toml"
        yield "FPR 0.1 %", f"not resolved: needs at least {least} non-members; {how}"
    yield "note", NOTE
    yield "written", f"{folder / 'roc.svg'}, roc.png, membership.json"


def _rate(rate: dict[str, Any], curve: Roc) -> str:
    """Formats a true-positive rate with its interval; "not resolved" with too few non-members."""
    if not rate["resolved"]:
        return f"not resolved ({curve.nonmembers} non-members)"
    return f"{rate['tpr']:.2%} [{rate['low']:.2%}, {rate['high']:.2%}]"


_LEAST = 1e-4
"""Smallest value on both axes of the figure."""


def exposure_files(exposure: Exposure) -> dict[str, bytes]:
    """Returns the contents, by file name, of the files of the attack's result.

    These are the ROC figure (SVG and PNG), and the numbers (JSON).
    """
    pictures = {f"roc.{kind}": roc_picture({"": exposure}, kind) for kind in ("svg", "png")}
    numbers = (dump(exposure_json(exposure), indent=1) + "\n").encode()
    return {**pictures, "membership.json": numbers}


def roc_picture(exposures: Mapping[str, Exposure], kind: str) -> bytes:
    """Returns an image file of ROC curves on logarithmic axes, with chance and the bound by ε.

    Args:
      exposures: the results of attacks by title; each has its own panel.
      kind: "svg" or "png".
    """
    size = (0.6 + 3.4 * len(exposures), 3.6)
    with canvas(1, len(exposures), size, sharey=True) as (figure, (panels,)):
        for axes, (title, exposure) in zip(panels, exposures.items(), strict=True):
            _draw_bound(axes, exposure)
            _draw_curves(axes, exposure)
            axes.set(xscale="log", yscale="log", xlim=(_LEAST, 1), ylim=(_LEAST, 1.05), title=title)
            axes.set_xlabel("false-positive rate")
            bounded = claim(exposure)[0] < math.inf
            axes.legend(fontsize=7, loc="lower right" if bounded else "best")
        panels[0].set_ylabel("true-positive rate")
        return image(figure, kind, 160, {"Date": None} if kind == "svg" else {"Software": None})


def _draw_bound(axes: Axes, exposure: Exposure) -> None:
    """Draws chance, and the largest true-positive rates that ε allows."""
    epsilon, delta, _ = claim(exposure)
    fpr = np.geomspace(_LEAST, 1, 400)
    axes.plot(fpr, fpr, color="#888888", linewidth=0.8, label="chance")
    if epsilon < math.inf:
        bound, label = tpr_bound(fpr, epsilon, delta), f"at most, by ε = {ceiling(epsilon)}"
        axes.plot(fpr, bound, color="black", linestyle=":", linewidth=1.2, label=label)
        axes.fill_between(fpr, bound, 1, color="#888888", alpha=0.15, linewidth=0)


def _draw_curves(axes: Axes, exposure: Exposure) -> None:
    """Draws each attack's rates, from the false-positive rate max(1 / non-members, `_LEAST`)."""
    grid = np.geomspace(_LEAST, 1, 400)
    styles = zip(exposure.curves.items(), COLOURS, DASHES, strict=False)
    for (name, curve), colour, dash in styles:
        fpr = grid[grid >= 1 / curve.nonmembers]  # smaller rates mean no false positive
        tpr = curve.tpr[np.searchsorted(curve.fpr, fpr, side="right") - 1]
        axes.plot(
            fpr,
            np.maximum(tpr, _LEAST / 10),
            drawstyle="steps-post",
            color=colour,
            linestyle=dash,
            linewidth=1.4,
            label=f"{ATTACK_NAMES[name]} (AUC {curve.auc:.2f})",
        )
