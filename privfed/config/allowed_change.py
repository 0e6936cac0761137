"""What a resume may change of a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privfed.config.config import Config
from privfed.errors import Refused


def allowed_change(stored: Config, wanted: Config) -> Config:
    """`wanted` with what the run measured and calibrated. Raises `Refused`, naming each key."""
    for key, unset in (("trainer", "auto"), ("chunk", 0), ("precision", "fast")):
        if getattr(wanted.run, key) == unset:
            wanted = wanted.with_run(**{key: getattr(stored.run, key)})
    wanted = replace(wanted, noise_multiplier=stored.noise_multiplier)
    if wanted.run.rounds < stored.run.rounds:
        raise Refused(
            f"--resume: run.rounds is {wanted.run.rounds}, but this run was started with "
            f"{stored.run.rounds}; rounds may only go up"
        )
    if stored.chosen and wanted.run.rounds != stored.run.rounds:
        raise Refused(
            "--resume: this run was chosen among others, and its ε covers the rounds that all of "
            "them had; start a new run, with privacy.prior and model.init this one"
        )
    before, after = _flat(stored), _flat(wanted)
    changed = [
        f"{key} was {before.get(key)!r} and is now {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in ("run.rounds", "privacy.epsilon")
    ]
    if changed:
        raise Refused(
            "--resume with a changed configuration: " + "; ".join(changed) + ". Only run.rounds "
            "(upward) and privacy.epsilon may change; start a new run for anything else"
        )
    return wanted


def _flat(config: Config) -> dict[str, Any]:
    values = config.values().items()
    return {f"{name}.{key}": value for name, keys in values for key, value in keys.items()}
