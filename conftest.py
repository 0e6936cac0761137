"""What is not collected where Flower is absent: it has an environment of its own."""

from importlib.util import find_spec

collect_ignore_glob = (
    []
    if find_spec("flwr")
    else ["privfed/deploy/carriers/flower/*.py", "tests/privfed/flower_*.py"]
)
