"""Run files for a part of a kind, with the keys that follow from its declarations."""

from __future__ import annotations

from contracts.registered import example
from small import same_run, trained

from privfed.core.parts import catalogue_name, find
from privfed.core.registry import BUILT_IN
from privfed.run.train import resume
from privfed.testing import keys_of_objective


def spelled(kind, part):
    """Returns the name of a part's class in a run file."""
    return catalogue_name(kind, type(part))


def with_objective(part):
    """Returns the keys with which the objective `part` runs."""
    keys = {"client.objective": spelled("objective", part), **keys_of_objective(part)}
    return [f"{key}={value}" for key, value in keys.items() if value is not None]


def choosing(name):
    """Returns the keys with which the built-in objective `name` runs."""
    return with_objective(example("objective", name))


def declaring(kind, **declared):
    """Returns the built-in parts of `kind` that declare these values, by name."""
    return [
        name
        for name in BUILT_IN[kind]
        if all(getattr(find(kind, name, kind), key) == value for key, value in declared.items())
    ]


def resumes_to_the_same_bits(folder, *keys):
    """Asserts that a small run with `keys` ends identically whether or not it is interrupted."""
    keys = ("run.randomness=seeded", "client.stragglers=0.3", *keys)
    trained(folder / "whole", *keys, "run.rounds=4")
    trained(folder / "part", *keys, "run.rounds=2")
    resume(folder / "part", lambda stored: stored.with_run(rounds=4))
    same_run(folder / "whole", folder / "part")
