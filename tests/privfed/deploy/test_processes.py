"""A federation of real processes: it trains as the simulator does, and outlives SIGKILL anywhere.

Sites and coordinator are processes that talk over sockets. They are killed at random times, and
before each of their syncs, renames and messages; whoever died is started again, and in the end the
books of all of them agree (`killed_processes.agrees`).
"""

import random

import pytest
import torch
from hospitals import hospitals
from killed_processes import agrees, served
from lanes import mostly_slow
from small import about, model
from waiting import LONG

from privfed.run.train import train

HOUR = 3600.0


def killed(folder, rounds, each, most, count=5, keys=(), limit=LONG, seed=0, share=0.2):
    """How often a process was killed at random times in a run that came to its end.

    At most `most` times: where a life is too short to get anywhere, later ones are longer.
    """
    made, rng, kills = hospitals(folder, count=count, patients=40), random.Random(seed), []
    run = made.run_file(f"run.rounds={rounds}", *keys)
    with served(made, run) as federation:
        for site in range(count):
            federation.site(site).start()
        federation.wait_for_sites()
        coordinator = federation.coordinator()
        coordinator.start()

        def disturb():
            if len(kills) < most and rng.random() < 0.005 / each:
                kills.append(True)
                hit = rng.random() < share
                sites = [other for other in federation.processes if other is not coordinator]
                (coordinator if hit else rng.choice(sites)).kill()

        deaths = federation.to_the_end(coordinator, limit, disturb)
        agrees(federation, rounds)
    return deaths


def killed_at_each_write(folder, who, rounds, first, step, count=5, keys=(), limit=LONG):
    """How often it died: in its life number k before its write number `first` + k * `step`."""
    made = hospitals(folder, count=count, patients=40)
    run = made.run_file(f"run.rounds={rounds}", *keys)

    def last(life):
        return first + (life - 1) * step

    with served(made, run) as federation:
        for site in range(count):
            federation.site(site, **({"last": last} if site == who else {})).start()
        federation.wait_for_sites()
        coordinator = federation.coordinator(**({"last": last} if who == "coordinator" else {}))
        coordinator.start()
        deaths = federation.to_the_end(coordinator, limit)
        agrees(federation, rounds)
        if who == "coordinator":  # a round that was released is not lost
            assert about(federation.out)["updates"] >= rounds - deaths
    return deaths


def test_a_seeded_federation_of_processes_is_the_simulator_bit_for_bit(tmp_path):
    made, keys = hospitals(tmp_path / "sites", patients=30), ("run.randomness=seeded",)
    train(made.config(*keys, table="all"), tmp_path / "simulated")
    with served(made, made.run_file(*keys)) as federation:
        for site in range(made.count):
            federation.site(site).start()
        federation.wait_for_sites()
        federation.coordinated()
        agrees(federation, 4)
        first, second = (model(path) for path in (tmp_path / "simulated", federation.out))
        assert all(torch.equal(first[name], second[name]) for name in first)
        ended = [process.ended() for process in federation.processes]
        assert ended == [None] * made.count  # nobody had died


@pytest.mark.slow
def test_the_books_agree_whoever_is_killed_and_when(tmp_path):
    assert killed(tmp_path / "sites", rounds=8, each=0.25, most=20) >= 1


KINDS = {
    "secret": (),
    "seeded": ("run.randomness=seeded",),
    "layers, two exchanges, a lying server": (
        *("privacy.sizing=layers", "secure.threat=malicious"),
        "client.objective=feddane",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("keys", KINDS.values(), ids=KINDS)
def test_a_hundred_kills_at_random_times(tmp_path, keys):
    """Most of them are of sites: a coordinator has to live long enough to begin."""
    folder = tmp_path / "sites"
    assert killed(folder, 150, 0.4, 150, keys=keys, limit=HOUR, share=0.05) >= 50


@pytest.mark.parametrize("who", mostly_slow([2, "coordinator"], 2))
def test_it_goes_on_from_a_kill_before_any_write(tmp_path, who):
    killed_at_each_write(tmp_path / "sites", who, rounds=6, first=5, step=7)


@pytest.mark.slow
@pytest.mark.parametrize("keys", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("who", [2, "coordinator"])
def test_it_goes_on_from_a_kill_before_every_write(tmp_path, who, keys):
    count = 5 if who == "coordinator" else 3  # of three nobody may drop, so that rounds wait
    facts = {"keys": keys, "limit": HOUR, "count": count}
    deaths = killed_at_each_write(tmp_path / "sites", who, 30, 2, 1, **facts)
    assert deaths >= 20
