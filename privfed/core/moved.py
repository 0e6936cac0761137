"""Where parts lay before the rooms were built.

Run files, entry points and ledgers may spell them so: "privfed.samplers:BySize".
"""

from __future__ import annotations

MODULES = {
    "attacks.adaptive": "attacks.updates.adaptive",
    "attacks.backdoor": "attacks.poisoning.backdoor",
    "attacks.fang": "attacks.updates.fang",
    "attacks.feature_noise": "attacks.poisoning.feature_noise",
    "attacks.label_flip": "attacks.poisoning.label_flip",
    "attacks.mimic": "attacks.updates.mimic",
    "attacks.min_max": "attacks.updates.min_max",
    "attacks.simple": "attacks.updates.simple",
    "attacks.statistics": "attacks.updates.statistics",
    "defenses.bucketing": "defenses.before.bucketing",
    "defenses.bulyan": "defenses.on_rows.bulyan",
    "defenses.centered_clipping": "defenses.by_sums.centered_clipping",
    "defenses.dnc": "defenses.on_rows.dnc",
    "defenses.fltrust": "defenses.on_rows.fltrust",
    "defenses.foolsgold": "defenses.on_rows.foolsgold",
    "defenses.geometric_median": "defenses.by_sums.geometric_median",
    "defenses.krum": "defenses.on_rows.krum",
    "defenses.mda": "defenses.on_rows.mda",
    "defenses.mean": "defenses.by_sums.mean",
    "defenses.mean_around_median": "defenses.on_rows.mean_around_median",
    "defenses.median": "defenses.on_rows.median",
    "defenses.nnm": "defenses.before.nnm",
    "defenses.norm_bound": "defenses.by_sums.norm_bound",
    "defenses.sign_majority": "defenses.by_sums.sign_majority",
    "defenses.trimmed_mean": "defenses.on_rows.trimmed_mean",
    "privfed.availability": "privfed.sampling.availability",
    "privfed.cnn": "privfed.models.cnn",
    "privfed.data.by_label": "privfed.data.partitions.label_skew",
    "privfed.data.covariate": "privfed.data.partitions.shift",
    "privfed.data.digits": "privfed.data.sources.digits",
    "privfed.data.idx": "privfed.data.sources.idx",
    "privfed.data.leaf": "privfed.data.sources.leaf",
    "privfed.data.partitions.basic": "privfed.data.partitions.basic",
    "privfed.data.shift": "privfed.data.partitions.shift",
    "privfed.data.synthetic": "privfed.data.sources.synthetic",
    "privfed.data.table": "privfed.data.sources.table",
    "privfed.data.text": "privfed.data.sources.text",
    "privfed.client.fedcurv": "privfed.client.objectives.fedcurv",
    "privfed.client.feddane": "privfed.client.objectives.feddane",
    "privfed.client.feddyn": "privfed.client.objectives.feddyn",
    "privfed.client.fedfor": "privfed.client.objectives.fedfor",
    "privfed.client.fednova": "privfed.client.objectives.fednova",
    "privfed.client.fedprox": "privfed.client.objectives.fedprox",
    "privfed.client.mime": "privfed.client.objectives.mime",
    "privfed.client.scaffold": "privfed.client.objectives.scaffold",
    "privfed.client.sgd": "privfed.client.objectives.sgd",
    "privfed.lstm": "privfed.models.lstm",
    "privfed.models": "privfed.models.recipes",
    "privfed.privacy.banded": "privfed.privacy.mechanisms.banded",
    "privfed.privacy.distributed": "privfed.privacy.mechanisms.distributed",
    "privfed.privacy.gaussian": "privfed.privacy.mechanisms.central_gaussian",
    "privfed.privacy.local": "privfed.privacy.mechanisms.local_gaussian",
    "privfed.privacy.none": "privfed.privacy.mechanisms.none",
    "privfed.samplers": "privfed.sampling.samplers",
    "privfed.schedule": "privfed.core.schedules",
    "privfed.secure.homomorphic": "privfed.secure.homomorphic.protocol",
    "privfed.secure.masks": "privfed.secure.masked.protocol",
    "privfed.secure.plain": "privfed.secure.plain_sum",
}
"""Former module -> the module that holds all its parts now."""

_LOSSES = "privfed.models.losses"
PARTS = {
    "privfed.data.shift:NoShift": "privfed.data.partitions.shift:NoShift",
    "privfed.losses:BinaryCrossEntropy": f"{_LOSSES}.binary_cross_entropy:BinaryCrossEntropy",
    "privfed.losses:CrossEntropy": f"{_LOSSES}.cross_entropy:CrossEntropy",
    "privfed.losses:MultiLabel": f"{_LOSSES}.multi_label:MultiLabel",
    "privfed.losses:SquaredError": f"{_LOSSES}.squared_error:SquaredError",
}
"""Parts that went elsewhere than the rest of their module."""


def moved(target: str) -> str:
    """The present place of the part `target`, "module:Name": `target`, where it never moved."""
    module, _, name = target.partition(":")
    return PARTS.get(target) or f"{MODULES.get(module, module)}:{name}"


def former(target: str) -> list[str]:
    """The places, "module:Name", from which the part `target` came."""
    name = target.partition(":")[2]
    places = [f"{module}:{name}" for module in MODULES]
    return [place for place in (*PARTS, *places) if moved(place) == target]
