"""Collection and hypothesis settings of all tests.

Tests of Flower, which has an environment of its own, are not collected where it is absent.
Hypothesis has no deadline per example, so that a slow machine fails no test.
"""

from importlib.util import find_spec

collect_ignore_glob = (
    []
    if find_spec("flwr")
    else ["privfed/deploy/carriers/flower/*.py", "tests/privfed/flower_*.py"]
)

if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("unhurried")
