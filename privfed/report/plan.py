"""What people see: plans, summaries, audits. Standard error in `--json` mode."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from accounting.events import CHANGE
from accounting.guarantee import guarantee
from accounting.releases import (
    PoissonSampled,
    Separated,
    TruncatedPoisson,
    WithoutReplacement,
    noise_of,
)
from privfed.plan.matrix import why
from privfed.plan.rule import told
from privfed.plan.unspent import unspent
from privfed.privacy.shared_noise import SharedNoise, shares_noise
from privfed.report.tables import (
    budget_rows,
    disjoint_line,
    example_line,
    opinions,
    rows,
    start_row,
    two_sided,
)
from privfed.words import ceiling, duration, number, size_of

if TYPE_CHECKING:
    from privfed.config.config import Config
    from privfed.plan.plan import Plan
    from privfed.run.forecast import Forecast

_FAINT = 0.1
"""Below this ratio of signal to noise per round a run has little to learn from."""


def plan_table(plan: Plan, forecast: Forecast, path: Path | None) -> Table:
    """What this run will guarantee and take: the header of `train`, and all of `check`."""
    config = plan.config
    names = config.names
    clients = config.data.clients
    pairs = {
        "data": f"{names['source']}, {clients} clients declared ({names['partition']})",
        "training": (
            f"{_model(config)} ({forecast.parameters:,} parameters), {names['objective']} x "
            f"{config.client.epochs} epochs at rate {config.client.lr:g}, "
            f"{names['optimizer']}{_server_rate(config)}, {config.run.rounds} rounds"
        ),
        "cohort": _cohort(plan, forecast),
        **_rule_row(plan),
        **(_privacy_rows(plan, forecast) if plan.mechanism.private else {"privacy": "none: ε = ∞"}),
        **({"proof": why(plan)} if plan.mechanism.private else {}),
        **_secure_rows(plan, forecast),
        "traffic": (
            f"{size_of(forecast.down)} down, {size_of(forecast.up)} up per round (a client is sent "
            f"{_of_one(forecast.down, plan, forecast)} and sends "
            f"{_of_one(forecast.up, plan, forecast)})"
        ),
        "time": _time(forecast),
        "trainer": _trainer(plan, forecast),
    }
    if forecast.remembered:
        pairs["clients"] = (
            f"have to return (cross_silo): each keeps {size_of(forecast.remembered)} between rounds"
        )
    if plan.mechanism.remembers:
        kept = 8 * forecast.parameters * len(config.mechanism.coefficients())
        pairs["memory"] = f"{size_of(kept)} of past noise, drawn again from its key when resumed"
    if other := plan.besides(config.run.rounds):
        pairs |= two_sided(config.privacy.against, other)
    if examples := plan.examples(config.run.rounds):
        pairs["examples"] = example_line(examples)
    if config.audit.canaries:
        pairs["canaries"] = _canaries(plan, forecast)
    pairs |= start_row(plan.guarantee, config.start.init)
    pairs |= budget_rows(plan.budgets)
    if config.privacy.disjoint:
        pairs["disjoint"] = disjoint_line(config.privacy.disjoint)
    if plan.void:
        pairs["guarantee"] = plan.void
    if plan.simulation:
        pairs["note"] = plan.simulation
    if left := unspent(plan):
        pairs["unspent"] = str(left)
    if plan.guarantee.delta * clients > 1 and plan.mechanism.private:
        pairs["warning"] = (
            f"δ = {plan.guarantee.delta:g} is above 1 / clients; choose a smaller privacy.delta"
        )
    if config.run.heads:
        pairs["heads"] = f"{config.run.heads} gets each head of the ledger before a cohort is drawn"
    if path:
        pairs["run"] = str(path)
    return rows(pairs)


def _model(config: Config) -> str:
    """Which model, and which of what it returns is its output."""
    key = config.start.output
    return f"{config.names['model']} model" + ("" if key == "" else f", its output {key!r}")


def _server_rate(config: Config) -> str:
    """That of an optimizer which has one: parts from outside need not."""
    rate = getattr(config.optimizer, "lr", None)
    return "" if rate is None else f" at rate {rate:g}"


def _canaries(plan: Plan, forecast: Forecast) -> str:
    """How many there are, and what they cost learning: directions at random are noise."""
    count, rate = plan.config.audit.canaries, plan.config.sampler.size
    share = rate / plan.config.data.clients * count / 2
    said = f"{count}, of which half enter, {share:.3g} in a cohort"
    if not forecast.noise or not forecast.signal:
        return said
    own = forecast.signal * math.sqrt(share) / forecast.cohort
    louder = math.hypot(1.0, own / forecast.noise) - 1
    advice = "; WARNING: use fewer, or the model will suffer" if louder > 0.05 else ""
    return f"{said}: noise is {louder:.1%} louder{advice}"


def _rule_row(plan: Plan) -> dict[str, str]:
    """How updates are aggregated, where that is more than a mean."""
    plain = not plan.config.rule.robust and not plan.config.aggregation.before
    return {} if plain else {"rule": told(plan.config)}


def _vectors(size: float, forecast: Forecast) -> str:
    """Bytes of a round as vectors `[d]` per client, without the odd number beside them."""
    count = round(size / forecast.cohort / forecast.parameters / 4)
    return "d" if count == 1 else f"{count} d"


def _of_one(size: float, plan: Plan, forecast: Forecast) -> str:
    """One client's part of a round's bytes."""
    if not plan.config.secured:
        return _vectors(size, forecast)
    return size_of(size / forecast.cohort)


def _secure_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Who sees what of the sums, and what encoding and aborts cost."""
    config, most = plan.config, plan.cost.limits.capacity
    if (protocol := config.row_hiding) is None:
        return {}
    central = plan.mechanism.trust == "server"
    trusted = f"; {protocol.opener} is trusted to add the noise" if central else ""
    seen = protocol.seen
    if plan.mechanism.trust == "sum":
        seen = "whoever opens the sum sees it with its noise, and nobody sees a row"
    pairs = {"secure": f"{config.names['protocol']}: {seen}{trusted}"}
    if said := protocol.promise(round(forecast.cohort), plan.cost.limits):
        pairs["holds"] = said
    longer, steps = "", f", in steps of {forecast.step:.2g}" if forecast.step else ""
    if forecast.encoded > 1.0005:
        longer = f"; rounding makes rows up to {forecast.encoded:.4g} times as long, and noise too"
    pairs["codec"] = f"{protocol.bits} bits for sums of up to {most} clients{steps}{longer}"
    if shares_noise(plan.mechanism):
        pairs |= _distributed_rows(plan, plan.mechanism)
    if forecast.aborts:
        cost = " (charged)" if plan.event.slack >= forecast.aborts else ""
        pairs["aborts"] = f"a round with a probability of at most {forecast.aborts:.2g}{cost}"
    if plan.cost.limits.admitted:
        pairs["begins"] = (
            f"with {protocol.begun(plan.cost.limits)} clients or more, as few as make aborts cost "
            "next to nothing"
        )
    return pairs


def _distributed_rows(plan: Plan, mechanism: SharedNoise) -> dict[str, str]:
    """What each client adds, what that assumes, and how often a coordinate wraps."""
    grid, bounds = mechanism.grid(), plan.cost.limits
    honest = f"{mechanism.honest:.0%} of that is honest clients'"
    sized = f"{bounds.minimum} clients make it up, and fewer abort"
    if mechanism.layered:
        sized = f"exact for up to {bounds.tolerance:.0%} missing, and with more the sum aborts"
    absent = (
        f"taken to be {bounds.hostile} of a cohort at most; they add no noise, and are told who "
        "was drawn"
    )
    return {
        "noise": (
            f"each client adds a deviation of {grid.share * grid.step:.3g} ({grid.share:.4g} "
            f"steps); {sized}; while {honest}"
        ),
        **({"hostile": absent} if bounds.hostile else {}),
        "wraps": f"a number of the sum with a probability of {grid.wraps:.2g}",
    }


def _privacy_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    config, bound = plan.config, plan.guarantee
    clip, follows = config.mechanism.clip, ""
    if config.mechanism.adaptive:
        quantile = config.values()["privacy"].get("clip_quantile")
        of = f"the {quantile:g}-quantile of " if quantile else ""
        follows = f" at first; it follows {of}clients' norms"
    change = CHANGE[plan.event.relation]
    sensitivity = change * clip * forecast.encoded
    of = "the clip" if change == 1 else f"{change} clips of {clip:g}"
    of += ", encoded" if forecast.encoded > 1.0005 else ""
    budget = f"ε = {number(plan.budget)}" if plan.budget else "none, the noise is fixed"
    pairs = {
        "privacy": (
            f"{config.names['mechanism']}, sensitivity {sensitivity:.6g} ({of}{follows}), noise "
            f"multiplier {ceiling(plan.noise_multiplier)}"
        ),
        "event": _event(plan),
        "budget": f"{budget}; all rounds spend ε = {ceiling(bound.epsilon)} at δ = {bound.delta:g}",
        "accountants": f"{bound.accountant} ({opinions(bound.by_accountant)})",
    }
    if plan.before.runs:
        earlier = guarantee(plan.before.spending, bound.delta, config.privacy.accountant)
        pairs["prior"] = (
            f"of this, ε = {ceiling(earlier.epsilon)} was spent before, over the same population "
            f"({', '.join(config.privacy.prior)})"
        )
    pairs["protects"] = f"{_unit(plan)}, {bound.relation}"
    if forecast.signal is not None and forecast.noise is not None:
        ratio = forecast.signal / forecast.noise if forecast.noise else math.inf
        what = "of terms of" if config.rule.robust else "of"
        pairs["signal"] = (
            f"{number(float(f'{ratio:.2g}'))} : 1 (an average {what} at most {forecast.signal:g}, "
            f"noise of norm {forecast.noise:.2g})"
        )
        if ratio < _FAINT:
            pairs["faint"] = (
                "hardly anything will be learned: take a larger cohort, fewer parameters (frozen "
                "layers, a public start) or rounds, or more ε"
            )
    return pairs


def _unit(plan: Plan) -> str:
    """Whom epsilon is about: under a simulated partition no person, but a client made up by it."""
    simulated = "simulated " if plan.config.partition.deals else ""
    return f"one {simulated}{plan.event.unit} with all its examples"


def _cohort(plan: Plan, forecast: Forecast) -> str:
    config = plan.config
    sampler, clients = config.sampler, config.data.clients
    witness = sampler.witness(0, clients)
    varies = config.availability.varies
    away = f"; of these, who is at hand ({config.names['availability']})" if varies else ""
    if not witness.random:
        return f"{witness.sampler}, {sampler.size} of {clients} (q = {witness.rate:g}){away}"
    cap = sampler.capacity()
    most = f", at most {cap}" if cap is not None else ""
    again = f", each once in {witness.separation} rounds" if witness.separation > 1 else ""
    return (
        f"{witness.sampler}, {sampler.size} expected{most} (q = {witness.rate:g}){again}; empty "
        f"with probability {forecast.empty:.2g}{away}"
    )


def _event(plan: Plan) -> str:
    """One round's release in words; z is over the change that one client can make."""
    release = plan.event.release
    noise = noise_of(release)
    if noise is None:
        return f"per round one {release.kind} release"
    change = CHANGE[plan.event.relation]
    doubled = " over two clips, as replacing a client moves a sum by both" if change == 2 else ""
    kind = {"gaussian": "Gaussian", "skellam": "Skellam", "discrete_gaussians": "discrete Gaussian"}
    said = f"per round one {kind[noise.kind]}(z = {ceiling(noise.noise_multiplier)}){doubled}"
    match release:
        case PoissonSampled(rate=rate):
            return f"{said}, Poisson-sampled at q = {rate:g}"
        case TruncatedPoisson(rate=rate, cap=cap):
            return f"{said}, Poisson-sampled at q = {rate:g} and cut to {cap}"
        case WithoutReplacement(cohort=m, clients=n):
            return f"{said}, on {m} of {n} drawn without replacement"
        case Separated(separation=b):
            return f"{said}, meeting a client once in {b} rounds at most"
    return said


def _trainer(plan: Plan, forecast: Forecast) -> str:
    """How clients' models are trained here, as measured or asked for."""
    run = plan.config.run
    how = ", in mixed precision" if run.precision == "mixed" else ""
    if run.trainer == "stacked":
        return f"{run.chunk} models at once, as one batched computation{how}"
    why = f": {forecast.unstacked}" if forecast.unstacked else ""
    return f"one client after the other{how}{why}"


def _time(forecast: Forecast) -> str:
    why = "a guess: two batches" if forecast.guessed else "as public facts suggest"
    shown = duration(forecast.seconds)
    return f"about {shown} here, for clients of {forecast.examples:.3g} examples ({why})"
