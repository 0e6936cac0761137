"""Rows on training in the table of a plan: objective, compression, adapters and evaluation."""

from __future__ import annotations

import math

from privfed.config.config import Config
from privfed.core.text import ceiling, size_of
from privfed.plan.budget_shares import budget_shares
from privfed.plan.plan import Plan
from privfed.plan.refusals.clients import adds_updates
from privfed.run.forecast import Forecast


def compression_row(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns a table row on compressed updates: size and clip; empty without compression."""
    compression, name = plan.config.compression, plan.config.names["compression"]
    if not compression.compresses:
        return {}
    if compression.public:
        return {"compression": f"{name}: {_predictions_text(plan, forecast)}"}
    sent = f"{name}: {forecast.message:,} of {forecast.parameters:,} numbers"
    if not compression.summable:
        sent = f"{name}: each row is encoded by itself"
    if compression.exchanges > 1:
        sent += f", {compression.exchanges} times"
    if not plan.mechanism.private:
        return {"compression": sent}
    shorter = f"{forecast.shortening:.2g} times " if forecast.shortening < 1.0 else ""
    clipped = f"the compressed row is clipped; its norm is about {shorter}that of the update"
    return {"compression": f"{sent}; {clipped}"}


def _predictions_text(plan: Plan, forecast: Forecast) -> str:
    """Describes messages about public examples: length, models, norm, and the server's step."""
    compression = plan.config.compression
    text = (
        f"{forecast.message:,} numbers on {compression.public:,} public examples (the server's "
        f"model has {forecast.parameters:,})"
    )
    if compression.trains_own_models:
        text += f"; clients train their own {' or '.join(compression.architectures) or 'model'}"
    if plan.mechanism.private:
        bound = compression.norm_bound
        norm = f" of norm at most {bound:.4g}" if math.isfinite(bound) else ""
        text += f"; rows{norm} are clipped to {plan.mechanism.clip:g}"
    if not adds_updates(plan.config):
        text += (
            "; the server takes a step towards the distilled model (server.optimizer, server.lr)"
        )
    return text


def evaluation_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns table rows on evaluation by clients, the ε of each part alone, and early stopping.

    The parts are training and evaluation. Rows that do not apply are left out.
    """
    config = plan.config
    pairs: dict[str, str] = {}
    if plan.evaluation is not None:
        every, keys = config.evaluation_rounds.every, config.evaluation
        groups = f", by {keys.group}" if keys.group else ""
        models = ", each of its own model" if keys.personal else ""
        noise = plan.evaluation.noise_multiplier
        noised = "" if noise is None else f"; noise multiplier {ceiling(noise)}"
        pairs["evaluation"] = (
            f"by clients{models}, every {every} rounds: {', '.join(keys.measures)}{groups}; "
            f"expected cohort {plan.evaluation.config.sampler.size}{noised}"
        )
    if forecast.half_widths and plan.mechanism.private:
        widths = (f"{name} ± {width:.2g}" for name, width in forecast.half_widths.items())
        pairs["intervals"] = (
            f"about {', '.join(widths)} from noise, at {config.evaluation.confidence:.0%}"
        )
    if plan.evaluation is not None and plan.mechanism.private:
        pairs["parts"] = "alone, " + ", ".join(
            f"{share.part} ({share.rounds} of the rounds) would spend ε = {ceiling(share.epsilon)}"
            for share in budget_shares(plan)
        )
    if config.stop.patience:
        by = config.stop.by or "the first measure"
        pairs["stop"] = f"after {config.stop.patience} evaluations without improvement in {by}"
    return pairs


def objective_rows(config: Config) -> dict[str, str]:
    """Returns table rows that warn of deviations from the published objective; empty without any.

    These are another server step, and plain updates of clients that take too few local steps.
    """
    pairs = {}
    name, least = config.names["objective"], config.objective.least_steps
    if config.objective.server_step == "plain" and not adds_updates(config):
        pairs["server"] = (
            f"this is not the published {name}, whose next model is the model plus the update "
            '(server.optimizer = "fedavg" at rate 1): it has the same fixed points, but may reach '
            "them faster, slower or not at all"
        )
    if least and not config.example_privacy:  # with DP-SGD the steps are known, and enough
        pairs["samples"] = (
            f"a client that takes fewer than {least} local steps in a round sends a plain update, "
            f"as with sgd (batches of {config.client.batch_size}, {config.client.epochs} epochs)"
        )
    return pairs


def adapter_rows(plan: Plan, forecast: Forecast) -> dict[str, str]:
    """Returns table rows on the number of parameters that adapters train; empty without any."""
    lora = plan.config.start.lora
    if lora is None or forecast.without_adapters is None:
        return {}
    trained, model = forecast.parameters, forecast.without_adapters
    factors = "B alone (A is fixed as initialised)" if lora.freeze_a else "A and B"
    pairs = {
        "adapters": (
            f"rank {lora.rank}, {factors}: {trained:,} numbers are trained and sent instead of "
            f"the {model:,} of the model ({size_of(4 * trained)} instead of "
            f"{size_of(4 * model)} per client, {model / trained:.3g} times fewer)"
        )
    }
    if not plan.config.starts_from:
        pairs["base"] = (
            "the adapted weights are not pretrained, and remain as initialised; use public "
            "weights (model.init)"
        )
    if plan.mechanism.private and not lora.freeze_a:
        pairs["factors"] = (
            "the product of A and B contains products of noise on both; model.lora.freeze_a = "
            "true avoids this, and halves the traffic"
        )
    return pairs
