"""The cost of sites: joint noise under masks, next to central noise without a protocol.

    python -m experiments.benchmarks.sites

Ten sites have 1,000 patients of ten rows each. A tenth of the patients train a network of 100,004
parameters for two epochs in each round. Both ways run the same rounds in turn, in one process of
one thread. The ratio of their processor times is the cost of encoding each patient's row and of the
protocol between sites. Then memory is measured, each in a separate process, for growing numbers of
patients per site: a site keeps one sum for any cohort.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

from rich.console import Console

from experiments.benchmarks.work import memory, steadiness
from experiments.benchmarks.work.running import Running
from experiments.benchmarks.work.workloads import MANY, Workload

SITES, RATE = 10, 0.1
AIM = 1.3
BY_SITES = MANY.with_(
    "cohort.sampler=poisson",
    "model.name=mlp",
    "model.hidden=[4000]",
    "run.rounds=100",
    "data.size=10",
    "client.epochs=2",
    "run.threads=1",
    "run.trainer=stacked",
    "run.chunk=8",
    f"data.sites={SITES}",
)
CENTRAL = ("privacy.mechanism=gaussian", "secure.protocol=none")
TOGETHER = ("privacy.mechanism=skellam", "privacy.sizing=layers", "secure.protocol=masks")


def workload(patients: int, *settings: str) -> Workload:
    """Returns rounds over sites with `patients` patients each."""
    clients = SITES * patients
    drawn = f"data.clients={clients}", f"cohort.size={round(RATE * clients)}"
    return BY_SITES.with_(*drawn, *settings)


def side_by_side(patients: int, rounds: int) -> tuple[list[float], list[float]]:
    """Returns processor seconds of each round, by sites with masks and without a protocol, in
    turn.
    """
    with ExitStack() as stack:
        together, central = (
            stack.enter_context(Running(workload(patients, *settings).setup()))
            for settings in (TOGETHER, CENTRAL)
        )
        for run in (together, central):
            run.go()
        taken = [(seconds(together), seconds(central)) for _ in range(rounds)]
    return [pair[0] for pair in taken], [pair[1] for pair in taken]


def seconds(run: Running) -> float:
    """Returns the processor time of one round on one thread, without other programs."""
    began = time.process_time()
    run.go()
    return time.process_time() - began


def memory_of(patients: int) -> tuple[float, float]:
    """Returns MB that this process held before, and at most during, two rounds by sites with
    masks.
    """
    with Running(workload(patients, *TOGETHER).setup()) as run:
        run.go()
        memory.forget_peak()
        before = memory.peak() / 1e6
        run.go(2)
        return before, memory.peak() / 1e6


def apart(patients: int) -> tuple[float, float]:
    """Returns the result of `memory_of`, called in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(memory_of, patients).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--patients", type=int, default=1000, help="of each site")
    parser.add_argument("--memory", type=int, nargs="*", default=[100, 1000], help="patients, too")
    arguments = parser.parse_args()
    console, spread = Console(width=110), [steadiness.reference()]
    together, central = side_by_side(arguments.patients, arguments.rounds)
    spread.append(steadiness.reference())
    ratios = [a / b for a, b in zip(together, central, strict=True)]
    drawn = round(RATE * SITES * arguments.patients)
    console.print(
        f"{SITES} sites of {arguments.patients:,} patients, {drawn:,} drawn: a round takes "
        f"{statistics.median(together):.2f} s with masks and Skellam noise in layers, "
        f"{statistics.median(central):.2f} s with central noise and no protocol: "
        f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f}; aim: {AIM:g})"
    )
    held = {patients: apart(patients) for patients in arguments.memory}
    listed = ", ".join(f"{n:,}: {most:.0f} MB ({start:.0f})" for n, (start, most) in held.items())
    if held:
        console.print(f"memory at most (before the round), by patients of a site: {listed}")
    spread.append(steadiness.reference())
    console.print(f"{steadiness.machine()}; {steadiness.spread(spread)}")


if __name__ == "__main__":
    main()
