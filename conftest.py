"""What holds for all tests: what is not collected, and what hypothesis may not fail.

Flower has an environment of its own: its tests are not collected where it is absent. And no
example of hypothesis fails by how long it takes: a test is slow where its machine is.
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
