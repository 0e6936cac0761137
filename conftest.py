"""Collection and hypothesis settings of all tests.

Modules of Flower and NVIDIA FLARE are not collected where these are absent. Modules
are searched for examples only if they contain a prompt: every worker collects hundreds of them.
Hypothesis has no deadline per example, so that a slow machine fails no test.
"""

from importlib.util import find_spec

import pytest

_ENGINES = {
    "flwr": ["privfed/deploy/carriers/flower/*.py", "tests/privfed/flower_*.py"],
    "nvflare": ["privfed/deploy/carriers/nvflare/*.py", "tests/privfed/flare_*.py"],
}
collect_ignore_glob = [
    each for engine, patterns in _ENGINES.items() if not find_spec(engine) for each in patterns
]

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
