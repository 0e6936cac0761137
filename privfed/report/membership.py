"""What people see of a membership attack: its table, its JSON, and the ROC with what ε allows."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table

from accounting.events import REPLACE_ONE
from attacks.roc import Roc, clopper_pearson
from attacks.tradeoff import advantage_bound, tpr_bound, twice
from privfed.grid.pictures.style import COLOURS, DASHES, STYLE
from privfed.json_text import dump
from privfed.leakage.membership import Exposure
from privfed.report.tables import rows
from privfed.words import ceiling, measure, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (0.001, 0.01)
CONFIDENCE = 0.95
NOTE = "a simulation: it reads clients' own examples, and no ε covers what it shows"
_NAMES = {"loss": "loss threshold", "lira": "LiRA", "lira_offline": "LiRA, offline"}
_LEAST = 1e-4


def claim(found: Exposure) -> tuple[float, float, str]:
    """ε, δ and in words whom they are about: a bound for targets of the attack's level.

    Membership of a client, by a coin, is one step of each relation. Of a run as it is, the members
    were in and the others never were: one in another's place. One example more or less replaces a
    client's data, too: one step of replace-one, two (out and in again) of the others.
    """
    user = found.guarantee
    if found.level == "user":
        if found.attacked > 1 or user.relation == REPLACE_ONE:
            return user.epsilon, user.delta, f"one client, {user.relation}"
        said = f"one client in another's place: two steps of {user.relation}"
        return (*twice(user.epsilon, user.delta), said)
    if user.relation == REPLACE_ONE:
        ways = [(user.epsilon, user.delta, "one client's data, of which an example is part")]
    else:
        said = "one client's data changed: two steps of the claim about a whole client"
        ways = [(*twice(user.epsilon, user.delta), said)]
    if silo := found.examples:
        ways.append((silo.epsilon, silo.delta, f"one example of a silo, {silo.relation}"))
    return min(ways)


def to_json(found: Exposure) -> dict[str, Any]:
    """The object that `privfed attack membership --json` prints."""
    epsilon, delta, about = claim(found)
    any_curve = next(iter(found.curves.values()))
    return {
        "level": found.level,
        "epsilon": epsilon,
        "delta": delta,
        "claim": about,
        "advantage_bound": advantage_bound(epsilon, delta),
        "confidence": CONFIDENCE,
        "attacks": {name: _numbers(curve, found) for name, curve in found.curves.items()},
        "targets": found.targets,
        "members": any_curve.members,
        "nonmembers": any_curve.nonmembers,
        "attacked_runs": found.attacked,
        "shadows": found.shadows,
        "seed": found.seed,
        found.measure: found.score,
        "simulation": True,
        "note": NOTE,
        "of": str(found.path) if found.path else None,
    }


def _numbers(curve: Roc, found: Exposure) -> dict[str, Any]:
    epsilon, delta, _ = claim(found)
    rates = []
    for fpr in RATES:
        tpr = curve.tpr_at(fpr)
        low, high = clopper_pearson(round(tpr * curve.members), curve.members, CONFIDENCE)
        seen = clopper_pearson(round(fpr * curve.nonmembers), curve.nonmembers, CONFIDENCE)
        bound = float(tpr_bound(np.array([max(fpr, seen[1])]), epsilon, delta)[0])
        one = {"fpr": fpr, "tpr": tpr, "low": low, "high": high, "bound": bound}
        rates.append({**one, "resolved": curve.resolves(fpr)})
    return {"auc": curve.auc, "advantage": curve.advantage, "tpr_at_fpr": rates}


def exposure_table(found: Exposure, folder: Path) -> Group:
    """What each attack achieved, what ε allows at most, and what that rests on."""
    epsilon, delta, about = claim(found)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("attack", "AUC", "advantage", *(f"TPR at {rate:.1%} FPR" for rate in RATES)):
        table.add_column(head, no_wrap=True)
    for name, curve in found.curves.items():
        one = _numbers(curve, found)
        cells = [_cell(rate, curve) for rate in one["tpr_at_fpr"]]
        table.add_row(_NAMES[name], f"{curve.auc:.3f}", f"{curve.advantage:.3f}", *cells)
    bounds = [f"{bound:.2%}" for bound in tpr_bound(np.array(RATES), epsilon, delta)]
    most = f"{advantage_bound(epsilon, delta):.3f}"
    table.add_row(f"ε = {ceiling(epsilon)} allows", "", most, *bounds, style="cyan")
    return Group(table, "", rows(dict(_said(found, about, delta, folder))))


def _said(found: Exposure, about: str, delta: float, folder: Path) -> Iterator[tuple[str, str]]:
    curve = next(iter(found.curves.values()))
    trained = f"{found.attacked} runs" if found.attacked > 1 else f"the run {found.path}"
    each = ", each in turn with the others as shadows" if found.attacked > 1 else ""
    yield "attacked", f"{trained}{each}; {found.shadows} shadow runs"
    yield "trials", f"{curve.members} members, {curve.nonmembers} non-members: {found.others}"
    yield "ε", f"at δ = {number(delta)}, for {about}"
    yield found.measure, f"{measure(found.measure, found.score)} on the public test examples"
    yield "intervals", "Clopper-Pearson, 95 %; trials of one run share its noise"
    if not curve.resolves(RATES[0]):
        least = math.ceil(1 / RATES[0])
        how = "take more --shadows" if found.attacked > 1 else f"attack {found.path}/config.toml"
        yield "FPR 0.1 %", f"not resolved: needs at least {least} non-members; {how}"
    yield "note", NOTE
    yield "written", f"{folder / 'roc.svg'}, roc.png, membership.json"


def _cell(rate: dict[str, Any], curve: Roc) -> str:
    if not rate["resolved"]:
        return f"not resolved ({curve.nonmembers} non-members)"
    return f"{rate['tpr']:.2%} [{rate['low']:.2%}, {rate['high']:.2%}]"


def files(found: Exposure) -> dict[str, bytes]:
    """The picture and the numbers, by the names of their files."""
    pictures = {f"roc.{kind}": picture({"": found}, kind) for kind in ("svg", "png")}
    return {**pictures, "membership.json": (dump(to_json(found), indent=1) + "\n").encode()}


def picture(panels: dict[str, Exposure], kind: str) -> bytes:
    """ROCs on logarithmic axes, one panel each by title, with chance and what ε allows."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        canvas, axes = pyplot.subplots(
            1, len(panels), figsize=(0.6 + 3.4 * len(panels), 3.6), sharey=True, squeeze=False
        )
        try:
            for place, (title, found) in zip(axes[0], panels.items(), strict=True):
                _panel(place, found, title)
            axes[0][0].set_ylabel("true-positive rate")
            return _bytes(canvas, kind)
        finally:
            pyplot.close(canvas)


def _panel(axes: Any, found: Exposure, title: str) -> None:
    epsilon, delta, _ = claim(found)
    grid = np.geomspace(_LEAST, 1, 400)
    axes.plot(grid, grid, color="#888888", linewidth=0.8, label="chance")
    if epsilon < math.inf:
        bound = tpr_bound(grid, epsilon, delta)
        said = f"at most, by ε = {ceiling(epsilon)}"
        axes.plot(grid, bound, color="black", linestyle=":", linewidth=1.2, label=said)
        axes.fill_between(grid, bound, 1, color="#888888", alpha=0.15, linewidth=0)
    for (name, curve), colour, dash in zip(found.curves.items(), COLOURS, DASHES, strict=False):
        shown = grid[grid >= 1 / curve.nonmembers]  # fewer false positives were none
        tpr = curve.tpr[np.searchsorted(curve.fpr, shown, side="right") - 1]
        said = f"{_NAMES[name]} (AUC {curve.auc:.2f})"
        axes.plot(
            shown,
            np.maximum(tpr, _LEAST / 10),
            drawstyle="steps-post",
            color=colour,
            linestyle=dash,
            linewidth=1.4,
            label=said,
        )
    axes.set(xscale="log", yscale="log", xlim=(_LEAST, 1), ylim=(_LEAST, 1.05), title=title)
    axes.set_xlabel("false-positive rate")
    axes.legend(fontsize=7, loc="lower right" if epsilon < math.inf else "best")


def _bytes(canvas: Figure, kind: str) -> bytes:
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    canvas.savefig(out, format=kind, dpi=160, metadata=metadata)
    return out.getvalue()
