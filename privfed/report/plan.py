"""The console table of a plan before training: configuration, guarantee and cost."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from defenses.history import HistoryRule
from privfed.auditing.canaries.power import Power
from privfed.config.config import Config
from privfed.core.text import duration, size_of
from privfed.plan.budget_shares import unspent_budget
from privfed.plan.calibration.advice_question import comparable
from privfed.plan.plan import Plan
from privfed.plan.rule import numbers_per_history, rule_text
from privfed.plan.site_guarantee import SiteGuarantee
from privfed.privacy.noise_on_model import stored_noise_rows
from privfed.report.plan_privacy import canaries_row, nominal_rows, power_row, privacy_rows
from privfed.report.plan_sums import secure_rows, site_guarantee_row, sites_row
from privfed.report.plan_training import (
    adapter_rows,
    compression_row,
    evaluation_rows,
    objective_rows,
)
from privfed.report.tables import (
    budget_rows,
    disjoint_row,
    further_guarantee_rows,
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
    """Returns the table that `privfed check` prints, and `privfed train` prints before training.

    Args:
      plan: the plan.
      forecast: the cost of a round, and the time of all rounds.
      path: the run directory; None if there is none.
      site: the guarantee for a site's own clients; None to leave it out.
      power: the statistical power of the canaries; None to leave it out.
      by_command: whether to mention `privfed check --advise`.
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
            **further_guarantee_rows(
                config.against, *plan.further_guarantees(config.run.rounds), config.colluding
            ),
            **(site_guarantee_row(site) if site else {}),
            **canaries_row(plan, forecast),
            **(power_row(power) if power else {}),
            **start_row(plan.guarantee, config.starts_from),
            **budget_rows(plan.budgets),
            **disjoint_row(config.privacy.disjoint),
            **nominal_rows(plan),
            **_advice_rows(plan, forecast),
            **(_comparison_row(plan) if by_command else {}),
            **_file_rows(config, path),
        }
    )


def _comparison_row(plan: Plan) -> dict[str, str]:
    """Returns a table row on the command that compares samplers; empty if not `comparable`.

    That is, if the command would refuse `plan`.
    """
    if not comparable(plan):
        return {}
    return {"advice": "privfed check --advise compares other samplers and mechanisms at this ε"}


def _training_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns table rows on data, training and aggregation."""
    config, names = plan.config, plan.config.names
    return {
        "data": f"{names['source']}, {config.data.clients} clients declared ({names['partition']})",
        "training": (
            f"{_model(config)} ({_parameters(forecast)}), {names['objective']} x "
            f"{_local_work(config)} at rate {config.client.lr:g}, "
            f"{names['optimizer']}{_server_rate(config)}, {config.run.rounds} rounds"
        ),
        **_auto_row(config),
        "loss": names["loss"],
        **objective_rows(config),
        **_statistics_row(forecast),
        **_groups_row(config),
        **sites_row(config),
        "cohort": _cohort(plan, forecast),
        **_staleness_row(plan, forecast),
        **compression_row(plan, forecast),
        **_rule_row(config),
        **_history_row(plan, forecast),
    }


def _auto_row(config: Config) -> dict[str, str]:
    """Returns a table row on "auto" keys that are still open, or else on their choice, if any."""
    if config.open:
        keys = " and ".join(config.open)
        return {"auto": f"{keys}: chosen when the run starts; shown as the loss recommends"}
    return {"auto": config.auto} if config.auto else {}


def _groups_row(config: Config) -> dict[str, str]:
    """Returns a table row on the groups of clients; empty if the objective has no groups."""
    grouping = config.objective.grouping
    if grouping is None:
        return {}
    count = f"{grouping.count} declared, " if grouping.count else ""
    under = "; only a client's clipped row depends on its group" if config.mechanism.private else ""
    return {"groups": f"{count}by {grouping.by}{under}"}


def _parameters(forecast: Forecast) -> str:
    """Formats the number of parameters that are sent, and of those that clients keep, if any."""
    count = f"{forecast.parameters - forecast.averaged:,} parameters"
    return f"{count} sent, {forecast.local:,} kept by clients" if forecast.local else count


def _statistics_row(forecast: Forecast) -> dict[str, str]:
    """Returns a table row on averaged running statistics of batch normalisations, if any."""
    if not forecast.averaged:
        return {}
    return {
        "batch statistics": f"{forecast.averaged:,} running statistics of batch normalisations are "
        "sent and averaged too, without a server optimizer (only without privacy)"
    }


def _local_work(config: Config) -> str:
    """Describes the local work of a client in a round."""
    epochs, steps, first = config.client.epochs, config.client.steps, config.client.local_epochs
    alone = f" ({first} of the local part, then of the shared part)" if first else ""
    return f"{epochs} epochs{alone}" + (f" (at most {steps} steps)" if steps else "")


def _model(config: Config) -> str:
    """Describes the model, and the selected output if it has several."""
    key = config.start.output
    return f"{config.names['model']} model" + ("" if key == "" else f", its output {key!r}")


def _server_rate(config: Config) -> str:
    """Describes the server's learning rate; "" if the optimizer has no attribute `lr`."""
    rate = getattr(config.optimizer, "lr", None)
    return "" if rate is None else f" at rate {rate:g}"


_SELDOM = 1e-9
"""The probability of an empty cohort is reported if it exceeds this."""


def _cohort(plan: Plan, forecast: Forecast) -> str:
    """Describes the expected cohort and the sampling rule."""
    config = plan.config
    sampler, clients = config.sampler, config.data.clients
    witness = sampler.witness(0, clients)
    varies = config.availability.varies
    away = f"; only available clients take part ({config.names['availability']})" if varies else ""
    if not witness.random:
        return f"{witness.sampler}, {sampler.size} of {clients} (q = {witness.rate:g}){away}"
    cap = sampler.capacity()
    most = f", at most {cap}" if cap is not None else ""
    again = f", each once in {witness.period} rounds" if witness.period > 1 else ""
    if sampler.largest_staleness():
        return (
            f"{witness.sampler}, {sampler.size} arrivals expected per round, each client at most "
            f"once in {witness.separation} rounds; no amplification{away}"
        )
    empty = ""
    if forecast.empty > _SELDOM:
        empty = f"; empty with probability {forecast.empty:.2g}"
    return (
        f"{witness.sampler}, {sampler.size} expected{most} (q = {witness.rate:g}){again}{empty}"
        f"{away}"
    )


def _staleness_row(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns a table row on clients or sites that train earlier models; empty without any."""
    sampler, sites = plan.config.sampler, plan.config.data.site_delays
    most, delays = sampler.largest_staleness(), getattr(sampler, "delays", ())
    if late := max(sites, default=0):
        text = ", ".join(map(str, sites))
        return {
            "staleness": f"up to {late} rounds: sites have delays of {text} rounds, and no round "
            "waits for them"
        }
    if not most:
        return {}
    tiers = f"; tiers of delay {', '.join(map(str, delays))}" if delays else ""
    return {
        "staleness": f"up to {most} rounds, since a client trains the model that it received, and "
        f"rounds close at fixed times{tiers}; the time of an arrival is not protected; the server "
        f"keeps {most} earlier models ({size_of(4 * most * forecast.parameters)})"
    }


def _rule_row(config: Config) -> dict[str, str]:
    """Returns a table row on the aggregation rule; empty for a plain mean."""
    plain = not config.rule.robust and not config.aggregation.before
    return {} if plain else {"rule": rule_text(config)}


def _history_row(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns a table row on the history that the aggregation rule stores per client, if any."""
    config = plan.config
    size = 4 * numbers_per_history(config, forecast.parameters)
    if not size:
        return {}
    rate = config.sampler.witness(0, config.data.clients).rate
    what = "released rows" if plan.mechanism.private else "secret rows (mode 0700)"
    often = "every round" if rate >= 1 else f"one round in {1 / rate:.3g} on average"
    also = ""
    if config.data.setting == "cross_device":
        also = "; a client that does not return has no history (data.setting is cross_device)"
    rule, rounds = config.rule, config.run.rounds
    if isinstance(rule, HistoryRule) and rounds <= rule.warm_up_rounds():
        also += (
            f"; WARNING: run.rounds is {rounds}, but the rule judges clients only after "
            f"{rule.warm_up_rounds()} rounds; raise run.rounds, or lower aggregation.window"
        )
    return {
        "histories": f"the rule stores {size_of(size)} for each client under private/histories, "
        f"computed from {what}; a client takes part in {often}{also}"
    }


def _cost_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns table rows on a round's traffic, the time of all rounds, and clients' state."""
    parties = "all sites (each site" if plan.config.by_sites else "the expected cohort (each client"
    pairs = {
        "traffic": (
            f"{size_of(forecast.down)} down, {size_of(forecast.up)} up per round for {parties} "
            f"is sent {_per_party(forecast.down, plan, forecast)} and sends "
            f"{_per_party(forecast.up, plan, forecast)}{_vector(plan, forecast)})"
        ),
        "training time": _time(forecast),
        "local training": _trainer(plan, forecast),
    }
    if forecast.remembered:
        pairs["clients"] = (
            f"have to return (cross_silo): each stores {size_of(forecast.remembered)} between "
            "rounds, under private/; no ε would cover the release of this state"
        )
    if plan.mechanism.remembers:
        past = 8 * forecast.parameters * stored_noise_rows(plan.mechanism)
        pairs["memory"] = f"{size_of(past)} of earlier noise, computed again from a key on resume"
    return pairs


def _per_party(size: float, plan: Plan, forecast: Forecast) -> str:
    """Formats the traffic of one party, if all parties together send (or receive) `size` bytes.

    The result is in bytes for secure sums and compressed updates. Otherwise it is an integer
    multiple of d, the number of parameters: scalars that are sent as well are rounded away.
    """
    if plan.config.secured or plan.config.compression.compresses:
        return size_of(size / forecast.parties)
    count = round(size / forecast.parties / forecast.parameters / 4)
    return "d" if count == 1 else f"{count} d"


def _vector(plan: Plan, forecast: Forecast) -> str:
    """Explains d if `_per_party` returns a multiple of d; otherwise ""."""
    in_bytes = plan.config.secured or plan.config.compression.compresses
    return "" if in_bytes else f"; d = {forecast.parameters:,} float32 parameters"


def _time(forecast: Forecast) -> str:
    """Describes the estimated time of all rounds on this machine, and its basis."""
    why = "a guess: two batches" if forecast.guessed else "from declared numbers"
    shown = duration(forecast.seconds)
    return (
        f"about {shown} for all rounds, estimated on this machine for clients of "
        f"{forecast.examples:.3g} examples ({why})"
    )


def _trainer(plan: Plan, forecast: Forecast) -> str:
    """Describes the execution of clients' training on this machine."""
    run = plan.config.run
    precision = f", {forecast.precision}" if forecast.precision else ""
    if run.trainer == "stacked":
        return f"vectorised: {run.chunk} models in one batched computation{precision}"
    why = f" ({forecast.unstacked})" if forecast.unstacked else ""
    return f"one client after another{why}{precision}"


def _advice_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns table rows that warn of unspent budget, a large δ, and test data out of bounds."""
    pairs = {}
    if left := unspent_budget(plan):
        pairs["unspent"] = str(left)
    delta_warning = plan.guarantee.delta_warning
    delta = f"{delta_warning}; choose a smaller privacy.delta" if delta_warning else ""
    if warning := "; ".join(filter(None, (delta, forecast.clipped))):
        pairs["warning"] = warning
    return pairs


def _file_rows(config: Config, path: Path | None) -> dict[str, str]:
    """Returns table rows on the file of ledger heads and the run directory, if they are set."""
    pairs = {}
    if config.run.heads:
        pairs["heads"] = f"each head of the ledger is written to {config.run.heads} before sampling"
    if path:
        pairs["run"] = str(path)
    return pairs
