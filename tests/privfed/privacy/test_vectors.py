"""Several vectors of a client: one clip over their concatenation (rules of proof, section 3)."""

import numpy as np
import pytest
import torch
from helpers import Rounds, population
from lanes import every_case

from privfed.client.objectives.mime import MimeLite
from privfed.client.objectives.scaffold import Scaffold
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.setting import ClientShares, CohortSize, Setting
from privfed.round.round import run_round

SIZES = (3, 9, 4, 6)
D = 18
SEVERAL = [
    name
    for name in BUILT_IN["objective"]
    if len(find("objective", name, "objective")().layout(D).parts) > 1
]
PRIVATE = [name for name in BUILT_IN["mechanism"] if find("mechanism", name, "mechanism")().private]


def objective_of(name):
    return find("objective", name, "objective")()


def one_client_moves_all_its_vectors_by_one_clip(folder, objective, clip=0.02):
    """Three rounds with everybody, and with each client gone, given what everybody's released.

    Others send the same then, whatever they remember: all that moves is the one client's row.
    """

    def played(gone, past=None):
        sizes = [0 if client == gone else n for client, n in enumerate(SIZES)]
        rounds = Rounds(folder / f"{gone}", sizes, federation=population(sizes), size=4, noise=0.0,
                        clip=clip, lr=5.0, objective=objective)  # fmt: skip
        states = [rounds.state]
        for round in (1, 2, 3):
            before = (past or states)[round - 1]
            states.append(run_round(round, rounds.algorithm, before, rounds.world))
        return states, rounds.released_so_far()

    states, everybody = played(None)
    assert everybody.shape == (3, objective.layout(D).length)
    for client in range(len(SIZES)):
        _, without = played(client, states)
        moved = np.linalg.norm(everybody - without, axis=1) * len(SIZES)
        assert (moved <= clip * (1 + 1e-5)).all(), f"client {client} moved its vectors by {moved}"
        assert moved[0] > 0.9 * clip, "nothing was clipped: this client proves nothing"


@every_case("name", SEVERAL)
def test_each_objectives_vectors_share_one_clip(name, tmp_path):
    one_client_moves_all_its_vectors_by_one_clip(tmp_path, objective_of(name))


@every_case("clip", [0.05, 0.3])
@every_case("objective", [Scaffold(control_scale=5.0), MimeLite(gradient_scale=5.0)])
def test_a_scale_only_weighs_the_vectors(objective, clip, tmp_path):
    one_client_moves_all_its_vectors_by_one_clip(tmp_path, objective, clip)


def test_the_objectives_with_several_vectors_are_among_those_tested():
    assert {"fednova", "fedprox_adaptive", "mimelite", "scaffold", "fedcurv"} <= {*SEVERAL}


def each_vector_alone(monkeypatch, kind):
    """Every part of a message is bounded as if it were all of it."""
    real = kind.bound

    def bound(self, rows, layout, keys, state):
        parts = [
            real(self, layout.view(rows, name), Layout(((name, size),)), keys, state)
            for name, size in layout.parts
        ]
        return BoundedRows(torch.cat([part.rows for part in parts], dim=1), parts[0].bound)

    monkeypatch.setattr(kind, "bound", bound)


@every_case("name", SEVERAL)
def test_a_clip_for_each_vector_is_caught(name, tmp_path, monkeypatch):
    each_vector_alone(monkeypatch, CentralGaussian)
    with pytest.raises(AssertionError, match="moved its vectors by"):
        one_client_moves_all_its_vectors_by_one_clip(tmp_path, objective_of(name))


def a_row_of_several_vectors_is_bounded_once(name):
    """By each mechanism itself, for rows that are long in any of their parts, or in all."""
    kind, clip = find("mechanism", name, "mechanism"), 0.3
    for objective in map(objective_of, SEVERAL):
        layout = objective.layout(D)
        setting = Setting(
            cohort=CohortSize(4, 4), noise=ClientShares(4), bits=32, length=layout.length
        )
        mechanism = kind(clip=clip, noise_multiplier=0.0).resolved(setting)
        rows = torch.randn(len(layout.parts) + 1, layout.length, generator=torch.manual_seed(1))
        for row, (part, _) in zip(rows, layout.parts, strict=False):
            layout.view(row, part).mul_(1e3)
        rows[-1] *= 1e3
        keys = Streams(1, simulated=True).at("noise/client/0", 1, np.arange(len(rows)))
        bounded = mechanism.bound(rows, layout, keys, mechanism.init())
        norms = bounded.rows.double().norm(dim=1)
        assert (norms <= clip).all(), f"{norms.tolist()} for a clip of {clip}"
        assert (norms > 0.99 * clip).all()


@every_case("name", PRIVATE)
def test_every_mechanism_bounds_a_row_of_several_vectors_once(name):
    a_row_of_several_vectors_is_bounded_once(name)


@every_case("name", PRIVATE)
def test_a_mechanism_that_clips_each_vector_is_caught(name, monkeypatch):
    each_vector_alone(monkeypatch, find("mechanism", name, "mechanism"))
    with pytest.raises(AssertionError, match="for a clip of"):
        a_row_of_several_vectors_is_bounded_once(name)


def test_a_clip_that_adapts_bounds_a_row_and_its_bit_once():
    layout = Scaffold().layout(D)
    mechanism = CentralGaussian(clip=0.3, noise_multiplier=1.0, adaptive_clip=True, count_noise=2.0)
    rows = torch.full((1, layout.length), 1e3)
    state = mechanism.init()
    bounded = mechanism.bound(rows, layout, Keys(None), state)
    assert float(bounded.rows.double().norm()) <= bounded.bound
    assert float(bounded.rows[:, :-1].double().norm()) <= 0.3
