"""Collection and hypothesis settings of all tests.

Tests of Flower, which has an environment of its own, are not collected where it is absent. Modules
are searched for examples only if they contain a prompt: every worker collects hundreds of them.
Hypothesis has no deadline per example, so that a slow machine fails no test.
"""

from importlib.util import find_spec

import pytest

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


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Drops the collectors of examples from modules without a prompt."""
    collectors = yield
    if file_path.suffix == ".py" and b">>>" not in file_path.read_bytes():
        return [each for each in collectors if type(each) is pytest.Module]
    return collectors
