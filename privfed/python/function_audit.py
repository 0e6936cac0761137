"""A test of a function of one's own, without training, from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from privfed.errors import Refused
from privfed.python.answer import Answer


def audit_function(
    function: Callable[..., Any],
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    rounds: int | None = None,
    releases: int | None = None,
    confidence: float = 0.95,
) -> Answer:
    """Play `function` on two neighbouring inputs, and hold what it releases against its claim.

    It is called as `function(member, generator)`: `member` says which of the two inputs it is to
    work on, and `generator` is a `numpy.random.Generator`, fresh in every call. It returns numbers,
    as many each time. Claimed is (`epsilon`, `delta`); or the profile of Gaussian noise of
    `noise_multiplier`, in `rounds` over Poisson cohorts of `sampling_rate`; or what its own method
    `profile(delta)` returns. The answer's `refuted` says whether the releases contradict that.
    """
    from privfed.auditing.function_audit import audit_function as audited_function
    from privfed.auditing.function_claim import claim_of
    from privfed.auditing.released_function import ReleasedFunction
    from privfed.report.mechanism_audit import function_table

    if releases is not None and releases < 20:
        raise Refused(f"releases is {releases}; expected at least 20")
    released = ReleasedFunction.of(function)
    claim = claim_of(released, epsilon, delta, noise_multiplier, sampling_rate, rounds)
    audited = audited_function(released, claim, releases, confidence)
    return Answer(audited.to_json(), function_table(audited), audited)
