"""The parts a run is made of: each is a frozen, strict configuration that also does its work.

A part's file owns its keys. The first key of its section names it (`[server] optimizer =
"fedavgm"`), and its fields are further keys there. Adding one is a file and a line in `BUILT_IN`;
a part from outside is `module:name`, or an entry point in the group `privfed.<kind>`.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

from pydantic import AfterValidator, BaseModel, ConfigDict

from privfed.errors import Refused
from privfed.own_code import in_own_code
from privfed.suggestions import nearest


class Part(BaseModel):
    """A frozen, strict configuration: unknown keys and wrong types are errors."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
    later: ClassVar[frozenset[str]] = frozenset()
    """Keys that came with later versions: at their defaults they do not change who a run is about
    (`privfed.people`)."""


_SCHEDULES = {
    "constant": "privfed.schedule:Constant",
    "staircase": "privfed.schedule:Staircase",
    "warmup": "privfed.schedule:WarmUp",
    "cosine": "privfed.schedule:Cosine",
}

BUILT_IN: dict[str, dict[str, str]] = {
    "source": {
        "digits": "privfed.data.digits:Digits",
        "synthetic": "privfed.data.synthetic:Synthetic",
        "idx": "privfed.data.idx:Idx",
        "table": "privfed.data.table:Table",
        "leaf": "privfed.data.leaf:Leaf",
        "text": "privfed.data.text:Text",
    },
    "partition": {
        "iid": "privfed.data.partition:Iid",
        "dirichlet": "privfed.data.by_label:Dirichlet",
        "shards": "privfed.data.by_label:Shards",
        "long_tail": "privfed.data.by_label:LongTail",
        "pachinko": "privfed.data.by_label:Pachinko",
        "natural": "privfed.data.partition:Natural",
        "shuffled": "privfed.data.partition:Shuffled",
    },
    "shift": {
        "none": "privfed.data.shift:NoShift",
        "covariate": "privfed.data.covariate:Covariate",
        "concept": "privfed.data.shift:Concept",
    },
    "model": {
        "logistic": "privfed.models:Logistic",
        "mlp": "privfed.models:Mlp",
        "cnn": "privfed.cnn:Cnn",
        "lstm": "privfed.lstm:Lstm",
    },
    "loss": {
        "cross_entropy": "privfed.losses:CrossEntropy",
        "binary_cross_entropy": "privfed.losses:BinaryCrossEntropy",
        "multi_label": "privfed.losses:MultiLabel",
        "squared_error": "privfed.losses:SquaredError",
    },
    "objective": {
        "sgd": "privfed.local.sgd:Sgd",
        "fedprox": "privfed.local.fedprox:FedProx",
        "fedprox_adaptive": "privfed.local.fedprox:AdaptiveFedProx",
        "fedfor": "privfed.local.fedfor:FedFor",
        "fednova": "privfed.local.fednova:FedNova",
        "feddane": "privfed.local.feddane:FedDane",
        "mime": "privfed.local.mime:Mime",
        "mimelite": "privfed.local.mime:MimeLite",
        "scaffold": "privfed.local.scaffold:Scaffold",
        "feddyn": "privfed.local.feddyn:FedDyn",
        "fedcurv": "privfed.local.fedcurv:FedCurv",
    },
    "client_mechanism": {
        "none": "privfed.local.dp_sgd:NoClientPrivacy",
        "dp_sgd": "privfed.local.dp_sgd:DpSgd",
    },
    "client_schedule": _SCHEDULES,
    "optimizer": {
        "fedavg": "privfed.server.fedavg:FedAvg",
        "fedavgm": "privfed.server.fedavgm:FedAvgM",
        "fedadagrad": "privfed.server.adaptive:FedAdagrad",
        "fedadam": "privfed.server.adaptive:FedAdam",
        "fedyogi": "privfed.server.adaptive:FedYogi",
    },
    "server_schedule": _SCHEDULES,
    "sampler": {
        "poisson": "privfed.samplers:Poisson",
        "truncated_poisson": "privfed.samplers:CappedPoisson",
        "fixed_size": "privfed.samplers:FixedSize",
        "full": "privfed.samplers:Full",
        "cyclic": "privfed.samplers:Cyclic",
        "by_size": "privfed.samplers:BySize",
    },
    "availability": {
        "always": "privfed.availability:Always",
        "daily": "privfed.availability:Daily",
        "groups": "privfed.availability:Groups",
    },
    "mechanism": {
        "none": "privfed.privacy.none:NoPrivacy",
        "gaussian": "privfed.privacy.gaussian:CentralGaussian",
        "banded": "privfed.privacy.banded:Banded",
        "skellam": "privfed.privacy.distributed:SkellamNoise",
        "discrete_gaussian": "privfed.privacy.distributed:DiscreteGaussianNoise",
        "local_gaussian": "privfed.privacy.local:LocalGaussian",
    },
    "rule": {
        "mean": "defenses.mean:Mean",
        "norm_bound": "defenses.norm_bound:NormBound",
        "centered_clipping": "defenses.centered_clipping:CenteredClipping",
        "geometric_median": "defenses.geometric_median:GeometricMedian",
        "sign_majority": "defenses.sign_majority:SignMajority",
        "trimmed_mean": "defenses.trimmed_mean:TrimmedMean",
        "median": "defenses.median:Median",
        "mean_around_median": "defenses.mean_around_median:MeanAroundMedian",
        "krum": "defenses.krum:Krum",
        "multi_krum": "defenses.krum:MultiKrum",
        "bulyan": "defenses.bulyan:Bulyan",
        "mda": "defenses.mda:MinimumDiameter",
        "dnc": "defenses.dnc:DivideAndConquer",
        "fltrust": "defenses.fltrust:FlTrust",
        "foolsgold": "defenses.foolsgold:FoolsGold",
    },
    "attack": {
        "none": "attacks.types:NoAttack",
        "label_flip": "attacks.label_flip:LabelFlip",
        "feature_noise": "attacks.feature_noise:FeatureNoise",
        "backdoor": "attacks.backdoor:Backdoor",
        "edge_case": "attacks.backdoor:EdgeCase",
        "sign_flip": "attacks.simple:SignFlip",
        "gaussian": "attacks.simple:GaussianNoise",
        "scaling": "attacks.simple:Scaling",
        "free_rider": "attacks.simple:FreeRider",
        "alie": "attacks.statistics:Alie",
        "ipm": "attacks.statistics:InnerProduct",
        "min_max": "attacks.min_max:MinMax",
        "min_sum": "attacks.min_max:MinSum",
        "mimic": "attacks.mimic:Mimic",
        "fang": "attacks.fang:Fang",
        "adaptive": "attacks.adaptive:Adaptive",
    },
    "before": {
        "nnm": "defenses.nnm:NearestNeighbourMixing",
        "bucketing": "defenses.bucketing:Bucketing",
    },
    "protocol": {
        "none": "privfed.secure.plain:PlainSum",
        "masks": "privfed.secure.masks:MaskedSums",
        "bfv": "privfed.secure.homomorphic:Bfv",
        "ckks": "privfed.secure.homomorphic:Ckks",
    },
}

CONTRACTS = {
    "source": "privfed.data:Source",
    "partition": "privfed.data:Partition",
    "shift": "privfed.data.shift:Shift",
    "loss": "privfed.losses:Loss",
    "objective": "privfed.local.objective:Objective",
    "sampler": "privfed.cohort:Sampler",
    "mechanism": "privfed.privacy.mechanism:Mechanism",
    "client_mechanism": "privfed.local.dp_sgd:ClientMechanism",
    "availability": "privfed.availability:Availability",
    "rule": "defenses.types:Rule",
    "before": "defenses.weighing:PreAggregator",
    "attack": "attacks.types:Attack",
    "protocol": "privfed.secure.summation:SumProtocol",
}
"""What parts of a kind have to declare: refusals, plans and reports rest on it, never on names."""

ADAPTERS = {"model": "privfed.models:Foreign"}
"""Kinds whose parts from outside may be plain functions, and what makes parts of these."""


def find(kind: str, name: str, key: str) -> type[Any]:
    """The class of part `name` of `kind`, for the configuration key `key`. Raises `Refused`."""
    target = BUILT_IN[kind].get(name)
    if target is None:  # looking for entry points takes milliseconds
        group = metadata.entry_points(group=f"privfed.{kind}")
        outside = {entry.name: entry.value for entry in group}
        target = outside.get(name) or (name if ":" in name else None)
        if target is None:
            known = expected(name, [*BUILT_IN[kind], *outside])
            raise Refused(f"{key} is {name!r}; {known}", key=key)
    part = _imported(target, name, key)
    if kind in ADAPTERS and callable(part) and not _is_part(part):
        part = _imported(ADAPTERS[kind], name, key).of(part)
    if not _is_part(part):
        function = ", or a function that returns a torch.nn.Module" if kind in ADAPTERS else ""
        raise Refused(
            f"{key} is {name!r}, which is no part; expected a subclass of privfed's Part{function}",
            key=key,
        )
    if name not in BUILT_IN[kind]:
        _refuse_silent(kind, part, f"{key} is {name!r}")
    return part


def _refuse_silent(kind: str, part: type[BaseModel], named: str) -> None:
    """Raises `Refused` where a part from outside leaves out what its kind has to declare."""
    if kind not in CONTRACTS:
        return
    contract, base = _contract(kind), CONTRACTS[kind].replace(":", ".")
    if issubclass(contract, BaseModel) and not issubclass(part, contract):
        raise Refused(f"{named}, which is no {kind}; expected a subclass of {base}")
    missing = sorted(_declared(contract) - {*dir(part), *part.model_fields})
    if missing:
        raise Refused(
            f"{named}, which does not declare {', '.join(missing)}; expected all that {base} "
            "says: extend a built-in part, or add these"
        )


def _contract(kind: str) -> type[Any]:
    module, _, attribute = CONTRACTS[kind].partition(":")
    contract: type[Any] = getattr(importlib.import_module(module), attribute)
    return contract


def _declared(contract: type[Any]) -> set[str]:
    """The names that a contract annotates or defines, without private ones."""
    names = {*vars(contract), *vars(contract).get("__annotations__", {})}
    return {name for name in names if not name.startswith(("_", "model_"))}


def catalogued(kind: str, part: type[Any]) -> str:
    """By what name the catalogue knows the class `part`, however it was spelt; else its place."""
    place = f"{part.__module__}:{part.__qualname__}"
    return next((name for name, target in BUILT_IN[kind].items() if target == place), place)


def _imported(target: str, name: str, key: str) -> Any:
    """What `module:attribute` names; a user's own module may lie in the working directory."""
    module, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever a user's module does
        said = " ".join(str(error).split())
        raise Refused(
            f"{key} is {name!r}, which cannot be imported from {here}: {type(error).__name__}: "
            f"{said}{in_own_code(error)}",
            key=key,
        ) from error


def _is_part(found: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(found, type) and issubclass(found, BaseModel)


def expected(found: str, known: list[str]) -> str:
    """What may stand there instead of `found`, and what was likely meant."""
    close = nearest(found, known)
    hint = f" (did you mean {close!r}?)" if close else ""
    return f"expected {'one of ' if len(known) > 1 else ''}{', '.join(sorted(known))}{hint}"


def only(value: Any, instead: str) -> Any:
    """A field that holds `value` alone in this version; anything else is refused by name."""

    def check(found: Any) -> Any:
        if found != value:
            raise ValueError(f"only {value!r} is available in this version; {instead}")
        return found

    return AfterValidator(check)
