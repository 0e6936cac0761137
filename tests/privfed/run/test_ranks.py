"""Several processes play one run: bit for bit what one process does."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from helpers import Rounds
from lanes import every_case
from small import SMALL, same_but_for_rounding, same_run, small, trained
from waiting import LONG

from privfed.cli.main import main
from privfed.core import ranks as module
from privfed.core.errors import RankLost, Refused
from privfed.core.ranks import SINGLE_PROCESS
from privfed.privacy.mechanism import draws_in_parts
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.round.round import run_round
from privfed.run import process_group
from privfed.run.prepare import prepare
from privfed.run.process_group import joined, refuse_ranks
from privfed.run.train import resume, train

SEEDED = "run.randomness=seeded"
KINDS = {
    "sum": ("privacy.noise_multiplier=1.0", "server.optimizer=fedadam"),
    "passes": ("aggregation.rule=geometric_median", "aggregation.passes=2"),
    "rows": ("privacy.mechanism=local_gaussian", "aggregation.rule=median"),
    "histories": (
        *("privacy.mechanism=none", "aggregation.rule=foolsgold"),
        *("cohort.sampler=full", "cohort.size=0"),
    ),
    "exchanges": ("client.objective=feddane",),
    "earlier models": (
        *("cohort.sampler=asynchronous", "cohort.size=0", "cohort.separation=2"),
        "cohort.delays=[0, 2]",
    ),
    "no privacy": ("privacy.mechanism=none",),
    "one by one": ("run.trainer=loop", "run.chunk=1", "privacy.noise_multiplier=1.0"),
    "one by one, no privacy": ("run.trainer=loop", "run.chunk=1", "privacy.mechanism=none"),
}
DEFAULT = ("one by one",)
"""Sums of stacked clients go by torchrun."""


class Quiet:
    def before(self, *_) -> None: ...
    def after_round(self, round) -> None: ...
    def choosing(self, *_) -> None: ...
    def aborted(self, *_) -> None: ...
    def after(self, record) -> None: ...


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in DEFAULT else pytest.mark.slow) for k in KINDS]
)
def test_two_processes_do_what_one_does(kind, tmp_path):
    alone = trained(tmp_path / "one", SEEDED, *KINDS[kind])
    with joined(2) as ranks:
        assert (ranks.rank, ranks.count) == (0, 2)
        outcome = train(small(SEEDED, *KINDS[kind]), tmp_path / "two", ranks=ranks)
    assert outcome.updates == 7
    if alone.plan.mechanism.private and kind != "rows":  # sums on a grid are exact
        same_but_for_rounding(tmp_path / "one", tmp_path / "two")
    else:
        assert outcome.measures["loss"] == pytest.approx(alone.measures["loss"], rel=1e-5)


@pytest.mark.slow
def test_under_torchrun_the_first_rank_writes(tmp_path):
    budget = ("privacy.noise_multiplier=2.0", "run.rounds=4")
    trained(tmp_path / "one", SEEDED, *budget)
    settings = [word for one in (*SMALL, SEEDED, *budget) for word in ("--set", one)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    where = ["-m", "privfed", "train", "--out", str(tmp_path / "two")]
    subprocess.run([*launch, *where, *settings, "--json"], check=True, timeout=LONG)
    same_but_for_rounding(tmp_path / "one", tmp_path / "two")


class First:
    """Rank 0, which notes what it tells the others."""

    rank, count = 0, 2

    def __init__(self):
        self.told, self.totals = [], []

    def first(self, act):
        self.told.append(act())
        return self.told[-1]

    def reduce(self, total):
        if total.shape == (self.count,):  # all did what this one did
            return torch.full_like(total, total[self.rank])
        self.totals.append(total)
        return total

    def part(self, length):
        return slice(length * self.rank // self.count, length * (self.rank + 1) // self.count)

    def on(self, device):
        return self


DIES_ONCE = """
import os, sys
from privfed.core import ranks
from privfed.cli.main import main

again, claimed = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0", ranks.Together.claimed

def dies(self, task, count):
    yield from claimed(self, task, count)
    if not again and self.rank and task.startswith("3/"):
        os._exit(1)

ranks.Together.claimed = dies
main(["train", "--resume", sys.argv[1]] if again else ["train", "--out", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_torchrun_may_start_it_again_and_nobody_is_left_out(tmp_path):
    """The store of what was claimed lives on; the round that was lost is played again."""
    kind = (SEEDED, *KINDS["one by one"], "run.rounds=5")
    trained(tmp_path / "one", *kind)
    (tmp_path / "dies.py").write_text(DIES_ONCE)
    settings = [word for one in (*SMALL, *kind) for word in ("--set", one)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=1"]
    launch += ["--standalone", "--nproc-per-node=2", str(tmp_path / "dies.py")]
    subprocess.run([*launch, str(tmp_path / "two"), *settings], check=True, timeout=LONG)
    same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("others", [1, -1])
def test_who_is_counted_twice_or_not_at_all_stops_the_round(tmp_path, others):
    class Another(First):
        def reduce(self, total):
            return total + others if total.dtype == torch.int64 else total

    rounds = Rounds(tmp_path)
    world = rounds.world
    executor = replace(world.executor, ranks=Another())
    with pytest.raises(RankLost, match="did not count every client"):
        run_round(1, rounds.algorithm, rounds.state, replace(world, executor=executor))
    assert not rounds.store.releases


@every_case(
    ("override", "exact"),
    [
        ("privacy.noise_multiplier=1.0", True),
        ("privacy.noise_multiplier=0.0", False),
        ("privacy.mechanism=banded", True),
        ("privacy.mechanism=blt", False),
        ("privacy.mechanism=none", False),
    ],
)
def test_clients_are_taken_as_they_come_where_sums_are_exact(override, exact):
    banded = (
        ("cohort.sampler=cyclic", "cohort.separation=3", "privacy.bands=3")
        if "banded" in override
        else ("cohort.sampler=cyclic", "cohort.separation=3")
        if "blt" in override
        else ()
    )
    for way in ("loop", "stacked"):
        setup = prepare(small(f"run.trainer={way}", "run.chunk=2", override, *banded))
        assert setup.executor.unordered == (exact and way == "loop")


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_cleanly_and_it_resumes(tmp_path, monkeypatch):
    workers = []
    started = process_group._worker
    monkeypatch.setattr(
        process_group, "_worker", lambda *of: workers.append(started(*of)) or workers[-1]
    )

    class Kills(Quiet):
        def after_round(self, round):
            if round == 4:
                workers[0].kill()
                workers[0].wait()

    with pytest.raises(RankLost, match="has died or cannot be reached"), joined(2) as ranks:
        train(small(SEEDED), tmp_path / "run", [Kills()], ranks)
    resume(tmp_path / "run", lambda _: small(SEEDED))
    trained(tmp_path / "whole", SEEDED)
    same_but_for_rounding(tmp_path / "whole", tmp_path / "run")


@every_case(
    ("override", "why"),
    [
        ("secure.protocol=masks", "a secure sum is simulated in one process"),
        ("audit.canaries=20", "canaries are simulated"),
        ("run.simulation_metrics=true", "counted in one process"),
        ("client.objective=scaffold", "clients' states"),
    ],
)
def test_what_is_simulated_in_one_process_is_refused(override, why):
    config = small(override)
    refuse_ranks(config, 1)
    with pytest.raises(Refused, match=why):
        refuse_ranks(config, 2)


def test_refused_before_anything_is_written(tmp_path):
    result = CliRunner().invoke(
        main,
        ["train", "--out", str(tmp_path / "run"), "--workers", "2"]
        + [word for one in (*SMALL, "audit.canaries=20") for word in ("--set", one)],
    )
    assert result.exit_code == 2
    assert "use run.workers = 1" in result.output
    assert not (tmp_path / "run").exists()


def test_alone_asks_nobody():
    assert SINGLE_PROCESS.first(lambda: 3) == 3
    assert torch.equal(SINGLE_PROCESS.reduce(torch.ones(2)), torch.ones(2))
    assert list(SINGLE_PROCESS.claimed("this", 3)) == [0, 1, 2]


class Counter:
    """A store, as ranks see it."""

    def __init__(self):
        self.counts = {}

    def add(self, name, more):
        self.counts[name] = self.counts.get(name, 0) + more
        return self.counts[name]


def test_whoever_is_done_takes_the_next_and_nobody_takes_it_twice():
    store = Counter()
    one, other = (module.Together(rank, 2, store, "now", lambda: True) for rank in (0, 1))
    fast, slow = one.claimed("1/train", 5), other.claimed("1/train", 5)
    taken = [next(fast), next(slow), next(fast), next(fast), next(slow)]
    assert taken == [0, 1, 2, 3, 4]
    assert [*fast, *slow] == []
    assert next(one.claimed("2/train", 5)) == 0
    assert next(other.claimed("2/train", 5)) == 1
    assert next(one.claimed("2/train", 5)) == 0  # asked again
    assert next(module.Together(0, 2, store, "later", lambda: True).claimed("1/train", 5)) == 0


class Second(First):
    """Rank 1, which hears it, and is never asked to act itself."""

    rank = 1

    def first(self, act):
        return self.told.pop(0)


def test_the_second_rank_neither_charges_nor_draws_and_each_adds_noise_where_no_other_does(
    tmp_path,
):
    """In secret mode, of clients who learn nothing: all that is in a sum is noise."""
    rounds = Rounds(tmp_path, simulated=False, lr=0.0)
    one, two = First(), Second()
    after = run_round(1, rounds.algorithm, rounds.state, replace(rounds.world, ranks=one))
    two.told, charges = one.told, len(rounds.world.ledger.charges)
    released = dict(rounds.store.releases)
    rounds.store.releases.clear()
    again = run_round(1, rounds.algorithm, rounds.state, replace(rounds.world, ranks=two))
    assert torch.equal(after.params, again.params)
    assert not two.told  # all that was told was asked for
    assert len(rounds.world.ledger.charges) == charges == 1
    assert released
    assert not rounds.store.releases
    first, second = (ranks.totals[-1] != 0.0 for ranks in (one, two))
    assert torch.equal(first, ~second)
    assert first[:9].all()


def test_a_rank_of_another_version_does_not_take_part():
    """It might draw another part of the noise, or none."""
    with pytest.raises(Refused, match=r"rank 0 runs privfed 0\.0\.9, but this rank"):
        process_group.refuse_another_version("0.0.9")


class Silent(First):
    """Rank 0, beside which nobody draws noise."""

    def reduce(self, total):
        return total


def test_a_release_without_all_of_its_noise_is_refused(tmp_path):
    rounds = Rounds(tmp_path, simulated=False)
    with pytest.raises(RankLost, match="draw all noise, exactly once"):
        run_round(1, rounds.algorithm, rounds.state, replace(rounds.world, ranks=Silent()))
    assert not rounds.store.releases


@every_case("count", range(1, 9))
def test_parts_are_all_of_a_vector_and_each_number_lies_in_one(count):
    parts = [module.Together(rank, count, None, "now", bool).part for rank in range(count)]
    for length in {0, 1, count - 1, count, count + 1, 19, 1000}:
        places = [place for part in parts for place in range(length)[part(length)]]
        assert places == list(range(length))
        assert max(len(range(length)[part(length)]) for part in parts) <= length // count + 1


class Doubled(CentralGaussian):
    """Says that rows are twice as long, and has twice the noise."""

    def release(self, total, divisor, keys, state):
        return super().release(replace(total, bound=2 * total.bound), divisor, keys, state)


class Halved(CentralGaussian):
    """Draws half of the noise in parts, which its base's release does not know."""

    def noised(self, total, keys, state, part):
        half = CentralGaussian(clip=self.clip, noise_multiplier=self.noise_multiplier / 2)
        return half.noised(total, keys, state, part)


@every_case("part", [CentralGaussian, Doubled, Halved])
def test_a_mechanism_that_extends_another_has_the_same_noise_over_ranks(part, tmp_path):
    """Who redefines the release or the noise of parts alone is asked for the release at once."""
    mechanism = part(clip=0.3, noise_multiplier=1.0)
    assert draws_in_parts(mechanism) == (part is CentralGaussian)

    def played(folder, ranks):
        rounds = Rounds(folder, mechanism=mechanism)
        run_round(1, rounds.algorithm, rounds.state, replace(rounds.world, ranks=ranks))
        return rounds.store.releases[1][0]

    class Twice(First):
        """Both ranks in one: what rank 1 would add is added here."""

        def part(self, length):
            return slice(0, length)

    alone, shared = played(tmp_path / "alone", SINGLE_PROCESS), played(tmp_path / "shared", Twice())
    assert torch.equal(alone, shared)


def test_a_sum_with_noise_of_some_ranks_alone_is_refused(tmp_path):
    """Rank 0 leaves its noise to the release, and another has drawn some."""

    class Another(First):
        def reduce(self, total):
            if total.shape == (self.count,):
                total[1] = 1
            return total

    rounds = Rounds(tmp_path, mechanism=Doubled(clip=0.3, noise_multiplier=1.0))
    with pytest.raises(RankLost, match="draw all noise, exactly once"):
        run_round(1, rounds.algorithm, rounds.state, replace(rounds.world, ranks=Another()))
    assert not rounds.store.releases


@every_case(
    ("cards", "backend"),
    [
        (["a", "b"], "nccl"),
        (["a", "b", "c", "d"], "nccl"),
        (["a", "b", "a"], "gloo"),  # two on one card
        (["a", ""], "gloo"),
        (["", ""], "gloo"),
    ],
)
def test_cards_add_up_by_themselves_where_each_rank_has_its_own(cards, backend):
    assert module.backend_of(cards) == backend


def test_what_has_no_card_of_its_own_is_told_apart(monkeypatch):
    assert module.card_of(torch.device("cpu")) == ""
    card = torch.device("cuda:1")
    cards = {card: type("Properties", (), {"uuid": "0f" * 16})}
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    for nccl in (True, False):
        monkeypatch.setattr(module.dist, "is_nccl_available", lambda nccl=nccl: nccl)
        assert module.card_of(card) == ("0f" * 16 if nccl else "")


TWO_RANKS = """
import json, sys
import torch
from privfed.core import ranks
from privfed.run.process_group import joined

cards, made, sums = json.loads(sys.argv[1]), [], []
ranks.card_of = lambda device: cards[int(__import__("os").environ["RANK"])]
torch.cuda.set_device = lambda device: None
real = ranks.dist.new_group


def new_group(backend, timeout):  # no card is at hand: another group of gloo stands for NCCL's
    made.append(backend)
    return real(backend="gloo", timeout=timeout)


class OnCard:
    \"\"\"A tensor as one on a card looks to `reduce`, which may not copy it to the CPU.\"\"\"

    is_cuda, device = True, "cuda:0"

    def __init__(self, numbers):
        self.numbers = numbers

    def to(self, device):
        return self.numbers


def all_reduce(tensor, group=None, async_op=False):
    sums.append(group is not None)
    return reduce_all(getattr(tensor, "numbers", tensor), group=group, async_op=async_op)


reduce_all = ranks.dist.all_reduce
ranks.dist.new_group, ranks.dist.all_reduce = new_group, all_reduce
with joined(2) as met:
    here = met.on(torch.device("cuda:0"))
    first = here.reduce(OnCard(torch.tensor([met.rank + 1.0]))) if made else torch.tensor([3.0])
    second = here.reduce(torch.tensor([met.rank + 1.0]))
    assert here.first(lambda: 7) == 7 and list(here.claimed("x", 0)) == []
    line = json.dumps([made, sums, first.tolist(), second.tolist()])
    sys.stdout.write(line + chr(10))  # at once: both ranks write to one pipe
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cards", "made", "sums"),
    [(["a", "b"], ["nccl"], [False, True, False]), (["a", ""], [], [False, False])],
)
def test_two_ranks_agree_on_how_cards_add_up(tmp_path, cards, made, sums):
    """What lies on a card goes by its own group, and what lies on the CPU by gloo as before."""
    (tmp_path / "two.py").write_text(TWO_RANKS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, str(tmp_path / "two.py"), json.dumps(cards)]
    ran = subprocess.run(command, check=True, timeout=LONG, capture_output=True, text=True)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert lines == [[made, sums, [3.0], [3.0]]] * 2
