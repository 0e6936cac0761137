"""Checks a part that you wrote: the contract of its kind, and a run that is interrupted.

```python
from privfed.testing import check_part


def test_it_keeps_its_contract(tmp_path):
    check_part("optimizer", Mine(lr=0.1), tmp_path)
```
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attacks.testing import ATTACK_CHECKS
from defenses.testing import BEFORE_CHECKS, RULE_CHECKS
from privfed.api.arguments import configuration
from privfed.auditing.mechanism_audit import examine
from privfed.auditing.run_audit import audit
from privfed.auditing.scenarios import plan_of_mechanism, scenarios_of
from privfed.config.catalog import key_of
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.parts import catalogue_name, refuse_silent
from privfed.core.registry import BUILT_IN, LISTS
from privfed.run.check import check
from privfed.run.outcome import Observer
from privfed.run.train import resume, train
from privfed.testing.hooks import OPTIMIZER_CHECKS, SAMPLER_CHECKS, SCHEDULE_CHECKS

CHECKS: Mapping[str, tuple[Callable[[Any], None], ...]] = {
    "optimizer": OPTIMIZER_CHECKS,
    "client_schedule": SCHEDULE_CHECKS,
    "server_schedule": SCHEDULE_CHECKS,
    "sampler": SAMPLER_CHECKS,
    "attack": ATTACK_CHECKS,
    "rule": RULE_CHECKS,
    "before": BEFORE_CHECKS,
}
"""Additional checks by kind of part; the checks that all kinds have are in `check_part`."""

_RUN: dict[str, Any] = {
    "data.source": "synthetic",
    "data.features": 9,
    "data.classes": 3,
    "data.size_min": 2,
    "data.size_mean": 1.0,
    "data.size_std": 0.5,
    "data.clients": 12,
    "cohort.size": 4,
    "client.batch_size": 4,
    "privacy.noise_multiplier": 2.0,
    "privacy.delta": 1e-3,
    "privacy.clip": 0.4,
    "run.rounds": 4,
    "run.evaluate_every": 2,
    "run.checkpoint_every": 3,
    "run.randomness": "seeded",
    "run.threads": 1,
}
_OF_KIND: dict[str, dict[str, Any]] = {
    "attack": {"attack.fraction": 0.25},
    "measure": {"evaluation.by": "clients", "evaluation.every": 2},
}
_OPEN = {"privacy.mechanism": "none", "privacy.noise_multiplier": None, "privacy.clip": None}
_SILOS: dict[str, Any] = {"data.setting": "cross_silo"}
_PLAIN = {"server.optimizer": "fedavg", "server.lr": 1.0, "server.schedule": "constant"}
_SETTINGS: tuple[dict[str, Any], ...] = (
    _OPEN,
    _SILOS,
    {"cohort.sampler": "full", "cohort.size": 0},
    _PLAIN,
    {"client.groups": 3},
)
"""Keys that some parts need; a check takes the fewest that are not refused."""


def check_part(
    kind: str, part: Any, folder: Path, keys: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Checks that a part keeps the contract of its kind: its class, its hooks, and a run.

    The class is strict, frozen and documented, and has all declarations of the kind. Hooks, the
    methods of the contract, return values of its types and shapes. A small run is trained,
    interrupted and resumed to the same bits, and its ledger is audited. The releases of a private
    mechanism are tested against its event. Optimizers, schedules, samplers, attacks, rules and
    pre-aggregators have further checks (`CHECKS`).

    Args:
      kind: the kind of part, as `privfed list` names it.
      part: the part.
      folder: an empty folder for runs.
      keys: keys of a run file that the part needs, such as {"data.setting": "cross_silo"}.

    Returns:
      The keys that the run needed in addition, such as {"privacy.mechanism": "none"} for an
      objective that is unproven: they follow from declarations, or else they are the fewest
      without which the run is refused.

    Raises:
      AssertionError: with the violated check, or the error of a hook in it.
      Refused: if `kind` is unknown, or the part or its run is refused.
    """
    if kind not in BUILT_IN:
        raise Refused(f"kind is {kind!r}; expected one of {', '.join(BUILT_IN)}")
    made, named = type(part), f"{kind} {type(part).__qualname__}"
    refuse_silent(kind, made, named)
    is_strict_and_documented(made, named)
    for each in CHECKS.get(kind, ()):
        try:
            each(part)
        except Refused:  # names the part and the hook
            raise
        except Exception as error:  # a user's hook may raise anything
            failed = each.__name__.replace("_", " ")
            raised = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            raise AssertionError(f"{named} fails: {failed}: {raised}{error}") from error
    config, settings = _config_for(kind, part, keys or {})
    _check_runs(config, named, folder)
    if kind == "mechanism" and part.private:
        scenarios = scenarios_of(plan_of_mechanism(config))
        judged = examine(*scenarios, 24, config.privacy.delta, config.audit.confidence, seed=1)
        charged = f"{judged.noise:g} of the noise that its event states"
        assert judged.noise_p_value > 1e-4, f"{named} adds {charged}"
        assert judged.noise < 2, f"{named} adds {charged}"
    return settings


def is_strict_and_documented(part: type[Any], named: str) -> None:
    """Checks that a class of parts, called `named`, is strict, frozen and documented."""
    settings = part.model_config
    strict = settings.get("strict") and settings.get("frozen")
    assert strict, f"{named} is not strict and frozen"
    assert settings.get("extra") == "forbid", f"{named} accepts unknown keys"
    missing = (
        f"give class {part.__qualname__} a docstring: its first line is shown by `privfed list`"
    )
    assert vars(part).get("__doc__"), f"{named} is not documented; {missing}"


class _Interrupting(Observer):
    """Interrupts a run after its second round."""

    def after_round(self, round: int) -> None:
        if round == 2:
            raise KeyboardInterrupt


def _check_runs(config: Config, named: str, folder: Path) -> None:
    """Trains a run, and another one that is interrupted and resumed; compares and audits them."""
    train(config, folder / "run")
    with contextlib.suppress(KeyboardInterrupt):
        train(config, folder / "resumed", observers=[_Interrupting()])
    resume(folder / "resumed", lambda stored: stored)
    for name in ("checkpoint.safetensors", "ledger.jsonl", "metrics.jsonl"):
        same = (folder / "run" / name).read_bytes() == (folder / "resumed" / name).read_bytes()
        assert same, f"{named}: a resumed run has another {name}; keep no state in the part"
    problems = audit(folder / "run").problems
    assert not problems, f"{named}: {'; '.join(map(str, problems))}"


def keys_of_objective(part: Any) -> dict[str, Any]:
    """Returns the keys of a run file that the declarations of the objective `part` require."""
    fields, only_plain = type(part).model_fields, part.server_step == "only_plain"
    keys: dict[str, Any] = {"client.groups": 3} if part.grouping and "groups" in fields else {}
    keys |= {"client.spread": 0.0} if only_plain and "spread" in fields else {}
    for setting, holds in ((_OPEN, part.unproven), (_SILOS, part.keeps), (_PLAIN, only_plain)):
        keys |= setting if holds else {}
    return keys


def _config_for(kind: str, part: Any, keys: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
    """Returns the configuration of a small run with the part, and the keys that the part needs.

    Raises `Refused` if no such run is accepted.
    """
    key = key_of(kind)
    section = key.rpartition(".")[0]
    small = {name: value for name, value in _RUN.items() if kind != "source" or name[:5] != "data."}
    small |= {"data.clients": _RUN["data.clients"], **_OF_KIND.get(kind, {})}
    declared = keys_of_objective(part) if kind == "objective" else {}
    for field in part.model_fields_set:
        for each in (small, declared):
            each.pop(f"{section}.{field}", None)
    chosen = {key: [catalogue_name(kind, type(part))] if kind in LISTS else part}
    reason = None
    for count in range(len(_SETTINGS) + 1):
        for settings in itertools.combinations(_SETTINGS, count):
            needed = dict(itertools.chain(*(each.items() for each in (declared, *settings))))
            given = _sections({**small, **needed, **keys, **chosen})
            try:
                config = configuration(None, None, {}, given)
                check(config)
            except Refused as refused:
                reason = reason or refused
            else:
                return config, needed
    assert reason is not None
    raise reason


def _sections(keys: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns `keys` grouped by section, without those whose value is None."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        if value is not None:
            section, _, name = key.rpartition(".")
            sections.setdefault(section, {})[name] = value
    return sections
