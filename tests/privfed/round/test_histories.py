"""Rules that remember clients, in runs: what is kept of whom, and what attackers foresee of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import Rounds, attackers, population
from lanes import mostly_slow
from small import SMALL, same_run, stop_after, trained

from attacks.types import Knowledge, UpdateAttack, usable_honest
from defenses.on_rows.flame import Flame
from defenses.on_rows.fldetector import FlDetector
from defenses.on_rows.foolsgold import FoolsGold
from privfed.cli.main import main
from privfed.privacy.mechanisms.local_gaussian import LocalGaussian
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.round.round import run_round
from privfed.run.train import resume
from privfed.sampling.samplers import Full, Poisson

SIZES = (3, 9, 4, 1, 6, 12, 5, 2)
OPEN = ("privacy.mechanism=none",)
FOOLSGOLD = (*OPEN, "aggregation.rule=foolsgold")
DETECTOR = (*OPEN, "aggregation.rule=fldetector", "aggregation.window=1", "cohort.size=8")
NOISED = ("privacy.mechanism=local_gaussian", "aggregation.rule=foolsgold")
KINDS = {"foolsgold": FOOLSGOLD, "fldetector": DETECTOR, "noised": NOISED}
RULES = {"foolsgold": FoolsGold(), "fldetector": FlDetector(window=1)}


def recorded(rounds):
    """Every message that is sent in `rounds`, by client, as it is bounded; round by round."""
    mechanism, messages = rounds.algorithm.mechanism, []
    plain = type(mechanism).bound

    def bound(self, rows, layout, keys, state):
        sent = plain(self, rows, layout, keys, state)
        messages.append(sent.rows.clone())
        return sent

    return messages, bound


@pytest.mark.parametrize("mechanism", [NoPrivacy(), LocalGaussian(clip=0.3, noise_multiplier=1.0)])
def test_a_history_is_the_sum_of_what_was_sent_and_of_nothing_else(
    tmp_path, monkeypatch, mechanism
):
    """With noise on each client it follows from released messages: post-processing."""
    rounds = Rounds(tmp_path, SIZES, mechanism=mechanism, rule=FoolsGold(), sampler=Full().of(8))
    messages, bound = recorded(rounds)
    monkeypatch.setattr(type(mechanism), "bound", bound)
    rounds.run(3)
    width = rounds.algorithm.rule.keeps(messages[0].shape[1])
    histories, returning = rounds.world.histories.gather(np.arange(8), torch.zeros(width))
    assert bool(returning.all())
    torch.testing.assert_close(histories, sum(messages))
    if mechanism.private:
        longer = histories.norm(dim=1) > len(messages) * mechanism.clip
        assert bool(longer.all()), "they are of noised messages, and not of clipped updates"


def test_who_does_not_take_part_is_remembered_as_before(tmp_path):
    rounds = Rounds(
        tmp_path, SIZES, mechanism=NoPrivacy(), rule=FoolsGold(), sampler=Poisson(size=3)
    )
    zeros, histories, state = torch.zeros(18), rounds.world.histories, rounds.state
    for round in range(1, 7):
        before, _ = histories.gather(np.arange(8), zeros)
        cohort = rounds.algorithm.draw(round, rounds.world.population, rounds.world.streams).clients
        state = run_round(round, rounds.algorithm, state, rounds.world)
        after, _ = histories.gather(np.arange(8), zeros)
        changed = np.flatnonzero((before != after).any(1).numpy())
        assert set(changed) == set(cohort.tolist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", mostly_slow([1, 2, 3, 5], 2))
def test_a_run_killed_in_any_round_ends_with_the_same_model(tmp_path, monkeypatch, kind, last):
    """Checkpoints are written after rounds 3 and 6; what is remembered is as of the round."""
    keys = (*KINDS[kind], "run.randomness=seeded")
    trained(tmp_path / "whole", *keys)
    with monkeypatch.context() as patch:
        stop_after(last, patch)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "cut", *keys)
    resume(tmp_path / "cut", lambda stored: stored)
    same_run(tmp_path / "whole", tmp_path / "cut")
    folders = [tmp_path / name / "private/histories" for name in ("whole", "cut")]
    assert folders[0].stat().st_mode & 0o777 == 0o700
    first, second = ((folder / "settled.f32").read_bytes() for folder in folders)
    assert first == second


def test_a_secret_run_takes_up_the_history_of_the_round_it_died_in(tmp_path, monkeypatch):
    """That round's release is replayed, and its messages are gone: its journal has what it kept."""
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            trained(path, *FOOLSGOLD, "cohort.sampler=full", "cohort.size=0", "run.rounds=3")
    journals = sorted(file.name for file in (path / "private/histories").glob("0*.f32"))
    assert journals == ["000001.f32", "000002.f32"]
    after_two, given = histories_of(path, 2), []
    plain = FoolsGold.with_histories

    def noted(self, rows, byzantine, histories, generator=None):
        given.append(histories.clients.cpu().numpy().copy())
        return plain(self, rows, byzantine, histories, generator)

    monkeypatch.setattr(FoolsGold, "with_histories", noted)
    assert resume(path, lambda stored: stored).updates == 3
    assert len(given) == 1, "only the third round is played"
    np.testing.assert_array_equal(given[0], after_two)


def settled(path: Path):
    """`[clients, 1 + k]` as of the last checkpoint."""
    clients = np.fromfile(path / "private/histories/settled.f32", np.float32)
    return clients.reshape(12, -1)


def histories_of(path: Path, round: int):
    """What the journal of `round` has `[clients, k]`, where all took part."""
    width = settled(path).shape[1] - 1
    form = np.dtype([("client", "<i8"), ("values", "<f4", (width,))])
    records = np.fromfile(path / f"private/histories/{round:06d}.f32", form)
    return records["values"][np.argsort(records["client"])]


class Tries(UpdateAttack):
    """It tries the rule on rows of its own, again and again, and sends the last of these."""

    knows = UpdateAttack.knows | {Knowledge.ALL_HONEST, Knowledge.RULE}

    def corrupt(self, view, state, rng):
        for scale in (5.0, -3.0, 1.0):
            honest = usable_honest(view.honest)
            sent = scale * honest.mean(0).expand_as(view.byzantine)
            predicted_aggregate = view.rule(torch.cat([sent, honest]))
        tried.append(predicted_aggregate)
        return sent.clone(), state


tried = []


def attacked(folder, rule, **changes):
    changes = {"mechanism": NoPrivacy(), "sampler": Full().of(8)} | changes
    return Rounds(folder, SIZES, rule=rule, **changes).attacked_by(attackers(Tries()))


@pytest.mark.parametrize("name", RULES)
def test_an_attacker_tries_the_very_rule_with_its_memory_frozen(tmp_path, name):
    """In every round, each row with its own client's history, and nothing of it is remembered."""
    tried.clear()
    rounds = attacked(tmp_path, RULES[name])
    rounds.run(6)
    assert len(tried) == 6
    for round, predicted_aggregate in enumerate(tried, start=1):
        torch.testing.assert_close(rounds.store.releases[round][0], predicted_aggregate)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_an_attacker_who_knows_the_rule_does_not_know_its_noise(tmp_path, noise):
    """Nor in a seeded run, where the noise of the release could be drawn twice."""
    tried.clear()
    rounds = attacked(tmp_path, Flame(noise=noise))
    rounds.run(2)
    releases = [rounds.store.releases[round][0] for round in (1, 2)]
    equal = [torch.allclose(*pair) for pair in zip(releases, tried, strict=True)]
    assert equal == [noise == 0.0] * 2


def test_histories_of_others_are_another_rule(tmp_path, monkeypatch):
    """The test before sees it: histories in the order of clients, and not of the rows tried."""
    tried.clear()
    monkeypatch.setattr("privfed.round.updates._whose", lambda count, rows, ids, byzantine: ids)
    rounds = attacked(tmp_path, RULES["foolsgold"])
    rounds.run(6)
    differ = [
        not torch.allclose(rounds.store.releases[round][0], predicted_aggregate)
        for round, predicted_aggregate in enumerate(tried, start=1)
    ]
    assert any(differ)


def test_diverged_honest_rows_are_left_out_of_what_an_attacker_tries(tmp_path):
    """As rules leave them out; the histories are those of the rows that are left."""
    tried.clear()
    federation = population(SIZES)
    broken = np.flatnonzero(~attackers(Tries()).byzantine(1))[0]
    federation.examples.x[federation.offsets[broken] : federation.offsets[broken + 1]] = torch.nan
    rounds = attacked(tmp_path, RULES["foolsgold"], federation=federation)
    rounds.run(4)
    for round, predicted_aggregate in enumerate(tried, start=1):
        torch.testing.assert_close(rounds.store.releases[round][0], predicted_aggregate)


def test_the_check_says_what_is_remembered_and_how_often_a_client_returns():
    def rows(*keys):
        words = [word for key in (*SMALL, *keys) for word in ("--set", key)]
        return " ".join(CliRunner().invoke(main, ["check", *words]).output.split())

    assert "84 bytes for each client under private/histories" in rows(*FOOLSGOLD)
    assert "one round in 3 on average; a client that does not return has no history" in rows(
        *FOOLSGOLD
    )
    silo = rows(*FOOLSGOLD, "data.setting=cross_silo", "cohort.sampler=full", "cohort.size=0")
    assert "takes part in every round" in silo
    assert "does not return" not in silo
    assert "computed from released rows" in rows(*NOISED)
    assert "private/histories" not in rows(*FOOLSGOLD, "aggregation.history=false")
    assert "the rule judges clients only after 20 rounds" in rows(
        *OPEN, "aggregation.rule=fldetector"
    )
    assert "judges clients only after" not in rows(*DETECTOR)
    assert "judges clients only after" not in rows(*FOOLSGOLD)
