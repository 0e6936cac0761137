"""What people see of a plan, before anybody trains: what it will guarantee, and what it takes."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from defenses.history import HistoryRule
from privfed.auditing.canaries.power import Power
from privfed.config.config import Config
from privfed.core.text import duration, size_of
from privfed.plan.budget_shares import unspent
from privfed.plan.calibration.advice_question import comparable
from privfed.plan.plan import Plan
from privfed.plan.rule import numbers_per_history, rule_in_words
from privfed.plan.site_guarantee import SiteGuarantee
from privfed.privacy.noise_on_model import remembered_rows
from privfed.report.plan_privacy import canaries_row, nominal_rows, power_row, privacy_rows
from privfed.report.plan_sums import secure_rows, site_guarantee_row, sites_row
from privfed.report.plan_training import (
    adapter_rows,
    compression_row,
    evaluation_rows,
    objective_rows,
)
from privfed.report.tables import (
    beside_rows,
    budget_rows,
    disjoint_row,
    rows,
    start_row,
)
from privfed.run.forecast import Forecast


def plan_table(
    plan: Plan,
    forecast: Forecast,
    path: Path | None,
    site: SiteGuarantee | None = None,
    power: Power | None = None,
    by_command: bool = False,
) -> Table:
    """What this run will guarantee and take: the header of `train`, and all of `check`.

    `by_command`: with what the command `privfed check` can say beside.
    """
    config = plan.config
    return rows(
        {
            **_training_rows(plan, forecast),
            **adapter_rows(plan, forecast),
            **privacy_rows(plan, forecast),
            **evaluation_rows(plan, forecast),
            **secure_rows(plan, forecast),
            **_cost_rows(plan, forecast),
            **beside_rows(config.against, *plan.also(config.run.rounds), config.colluding),
            **(site_guarantee_row(site) if site else {}),
            **canaries_row(plan, forecast),
            **(power_row(power) if power else {}),
            **start_row(plan.guarantee, config.starts_from),
            **budget_rows(plan.budgets),
            **disjoint_row(config.privacy.disjoint),
            **nominal_rows(plan),
            **_advice_rows(plan),
            **(_comparison_row(plan) if by_command else {}),
            **_file_rows(config, path),
        }
    )


def _comparison_row(plan: Plan) -> dict[str, str]:
    """Where other draws and mechanisms are compared with those of a run that is checked."""
    if not comparable(plan):
        return {}
    return {"advice": "privfed check --advise compares other draws and noise at this ε"}


def _training_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Rows on who trains what, and how it is aggregated."""
    config, names = plan.config, plan.config.names
    return {
        "data": f"{names['source']}, {config.data.clients} clients declared ({names['partition']})",
        "training": (
            f"{_model(config)} ({_parameters(forecast)}), {names['objective']} x "
            f"{_local_work(config)} at rate {config.client.lr:g}, "
            f"{names['optimizer']}{_server_rate(config)}, {config.run.rounds} rounds"
        ),
        **objective_rows(config),
        **_groups_row(config),
        **sites_row(config),
        "cohort": _cohort(plan, forecast),
        **compression_row(plan, forecast),
        **_rule_row(config),
        **_history_row(plan, forecast),
    }


def _groups_row(config: Config) -> dict[str, str]:
    """What tells a client's group, where its row depends on that."""
    grouping = config.objective.grouping
    if grouping is None:
        return {}
    count = f"{grouping.count} declared, " if grouping.count else ""
    under = "; it leaves a client in its clipped row alone" if config.mechanism.private else ""
    return {"groups": f"{count}by {grouping.by}{under}"}


def _parameters(forecast: Forecast) -> str:
    """How many numbers a model has, and how many of them stay with clients."""
    count = f"{forecast.parameters:,} parameters"
    return f"{count} sent, {forecast.local:,} that stay with clients" if forecast.local else count


def _local_work(config: Config) -> str:
    """How far a client trains in a round."""
    epochs, steps, first = config.client.epochs, config.client.steps, config.client.local_epochs
    alone = f" ({first} of what stays, then what is sent)" if first else ""
    return f"{epochs} epochs{alone}" + (f" (at most {steps} steps)" if steps else "")


def _model(config: Config) -> str:
    """Which model, and which of what it returns is its output."""
    key = config.start.output
    return f"{config.names['model']} model" + ("" if key == "" else f", its output {key!r}")


def _server_rate(config: Config) -> str:
    """The server's learning rate, of an optimizer which has one: parts from outside need not."""
    rate = getattr(config.optimizer, "lr", None)
    return "" if rate is None else f" at rate {rate:g}"


def _cohort(plan: Plan, forecast: Forecast) -> str:
    """How many are drawn each round, by which rule."""
    config = plan.config
    sampler, clients = config.sampler, config.data.clients
    witness = sampler.witness(0, clients)
    varies = config.availability.varies
    away = f"; of these, who is at hand ({config.names['availability']})" if varies else ""
    if not witness.random:
        return f"{witness.sampler}, {sampler.size} of {clients} (q = {witness.rate:g}){away}"
    cap = sampler.capacity()
    most = f", at most {cap}" if cap is not None else ""
    again = f", each once in {witness.period} rounds" if witness.period > 1 else ""
    return (
        f"{witness.sampler}, {sampler.size} expected{most} (q = {witness.rate:g}){again}; empty "
        f"with probability {forecast.empty:.2g}{away}"
    )


def _rule_row(config: Config) -> dict[str, str]:
    """How updates are aggregated, where that is more than a mean."""
    plain = not config.rule.robust and not config.aggregation.before
    return {} if plain else {"rule": rule_in_words(config)}


def _history_row(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """What the rule remembers of each client, where it lies, and how often a client returns."""
    config = plan.config
    size = 4 * numbers_per_history(config, forecast.parameters)
    if not size:
        return {}
    rate = config.sampler.witness(0, config.data.clients).rate
    what = "released rows" if plan.mechanism.private else "rows, as secret as these (mode 0700)"
    often = "every round" if rate >= 1 else f"one round in {1 / rate:.3g} on average"
    also = ""
    if config.data.setting == "cross_device":
        also = "; a client that does not return has none (data.setting is cross_device)"
    rule, rounds = config.rule, config.run.rounds
    if isinstance(rule, HistoryRule) and rounds <= rule.unjudged():
        also += (
            f"; nobody is judged: that takes more than {rule.unjudged()} rounds, and run.rounds is "
            f"{rounds}; raise it, or lower aggregation.window"
        )
    return {
        "histories": f"the rule keeps {size_of(size)} of each client under private/histories, "
        f"made of {what}; a client takes part in {often}{also}"
    }


def _cost_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """What a round sends, how long all take here, and what is kept between two of them."""
    pairs = {
        "traffic": (
            f"{size_of(forecast.down)} down, {size_of(forecast.up)} up per round (a "
            f"{'site' if plan.config.by_sites else 'client'} is sent "
            f"{_per_party(forecast.down, plan, forecast)} and sends "
            f"{_per_party(forecast.up, plan, forecast)})"
        ),
        "time": _time(forecast),
        "trainer": _trainer(plan, forecast),
    }
    if forecast.remembered:
        pairs["clients"] = (
            f"have to return (cross_silo): each keeps {size_of(forecast.remembered)} between "
            "rounds, under private/, which no ε covers once it is shown"
        )
    if plan.mechanism.remembers:
        past = 8 * forecast.parameters * remembered_rows(plan.mechanism)
        pairs["memory"] = f"{size_of(past)} of past noise, drawn again from its key when resumed"
    return pairs


def _per_party(size: float, plan: Plan, forecast: Forecast) -> str:
    """One party's part of a round's `size` bytes: in vectors `[d]`, or as bytes in secure sums,
    and of compressed updates.

    Vectors are counted without the odd number beside them.
    """
    if plan.config.secured or plan.config.compression.compresses:
        return size_of(size / forecast.parties)
    count = round(size / forecast.parties / forecast.parameters / 4)
    return "d" if count == 1 else f"{count} d"


def _time(forecast: Forecast) -> str:
    """How long all rounds take here, and what that guess rests on."""
    why = "a guess: two batches" if forecast.guessed else "as public facts suggest"
    shown = duration(forecast.seconds)
    return f"about {shown} here, for clients of {forecast.examples:.3g} examples ({why})"


def _trainer(plan: Plan, forecast: Forecast) -> str:
    """How clients' models are trained here, as measured or asked for."""
    run = plan.config.run
    precision = f", {forecast.precision}" if forecast.precision else ""
    if run.trainer == "stacked":
        return f"{run.chunk} models at once, as one batched computation{precision}"
    why = f" ({forecast.unstacked})" if forecast.unstacked else ""
    return f"one client after the other{why}{precision}"


def _advice_rows(plan: Plan) -> dict[str, str]:
    """A budget that is not used up, and a delta that promises next to nothing."""
    pairs = {}
    if left := unspent(plan):
        pairs["unspent"] = str(left)
    if weakness := plan.guarantee.weakness:
        pairs["warning"] = f"{weakness}; choose a smaller privacy.delta"
    return pairs


def _file_rows(config: Config, path: Path | None) -> dict[str, str]:
    """Rows on where the run leaves its traces."""
    pairs = {}
    if config.run.heads:
        pairs["heads"] = f"{config.run.heads} gets each head of the ledger before a cohort is drawn"
    if path:
        pairs["run"] = str(path)
    return pairs
