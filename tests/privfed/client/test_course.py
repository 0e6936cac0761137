"""A course of local training: where clients begin, what they carry, and what a step moves."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers import population, trainer
from lanes import every_case
from toys import Turns

from privfed.client.batches import plan_batches
from privfed.client.dp_sgd import DpSgd
from privfed.client.objective import Sgd
from privfed.client.silos import PrivateSilos, SiloLedgers
from privfed.core.streams import Streams

SIZES = (3, 9, 0, 4, 12)


def keys(ids):
    return Streams(3, simulated=True).at("shuffle", 1, np.asarray(ids))


def local(objective, **changes):
    made = trainer(population(SIZES), epochs=3, lr=0.2, **changes)
    return replace(made, objective=objective)


def on_the_course(made, client, models):
    """A client's row of `Turns`, from its definition, one example set after the other."""
    examples = made.federation.gather(
        torch.arange(made.federation.offsets[client], made.federation.offsets[client + 1])
    )
    losses = [made.network.losses(model, *examples).mean() for model in models]
    w = models[int(torch.stack(losses).argmin())].clone()
    batches = plan_batches(made.federation, np.array([client]), keys([client]), 3, made.batch_size)
    per_epoch = -(-SIZES[client] // made.batch_size)
    passed, total = [torch.zeros_like(w)], torch.zeros_like(w)
    for step in range(batches.steps[0]):
        x, y = made.federation.gather(
            torch.from_numpy(batches.rows[0, step][batches.mask[0, step]])
        )
        mean = torch.stack(passed[1:] or passed).mean(0)
        grad = made.network.gradient(w, x, y) - made.network.gradient((mean + w) / 2, x, y) / 2
        passed.append(w.clone())
        total += grad
        moved = (torch.arange(len(w)) + step // per_epoch) % 2 == 0
        w -= made.lr * grad * moved
    return -made.lr * total / batches.steps[0]


@every_case("way", ["stacked", "loop"])
@every_case("order", [[4, 1, 3, 0, 2], [2, 0, 3, 1, 4]], ids=["by work", "against"])
def test_it_goes_as_its_objective_says_whoever_else_is_in_the_stack(way, order):
    made = local(Turns(), way=way)
    params = made.network.initial_params
    broadcast = {"params": torch.cat([params, params + 0.5])}
    rows, _ = made.train(np.array(order), broadcast, None, keys(order))
    models = broadcast["params"].view(2, -1)
    for client, row in zip(order, rows, strict=True):
        if SIZES[client]:
            wanted = on_the_course(made, client, models)
            torch.testing.assert_close(row, wanted, rtol=1e-4, atol=1e-6)
        else:
            assert not row.any(), "who has no example takes no step, and carries nothing on"


class Far(Sgd):
    """Plain steps from a model of one's own, of which the way is sent."""

    keeps: ClassVar[int] = 1

    def origin(self, broadcast, state, measured):
        return state

    def message(self, w, broadcast, state, work):
        return w - state, w


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_plain_steps_begin_where_a_client_left_off(way):
    made, plain = local(Far(), way=way), local(Sgd(), way=way)
    assert made.plain
    params, ids = made.network.initial_params, np.arange(len(SIZES))
    states = params + torch.arange(5.0)[:, None] / 10
    rows, after = made.train(ids, {"params": params + 9}, states, keys(ids))
    torch.testing.assert_close(after, states + rows)
    for client in ids:
        alone = plain.train(ids[[client]], {"params": states[client]}, None, keys([client]))[0]
        torch.testing.assert_close(rows[[client]], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_a_steered_attacker_measures_its_way_from_where_it_began(way):
    distances = []

    def steering(direction, away, lr):
        distances.append(away.clone())
        return direction

    made = local(Far(), way=way, steering=steering)
    params = made.network.initial_params
    made.train(np.array([4]), {"params": params + 9}, params[None] + 1, keys([4]))
    assert not distances[0].any()
    assert distances[-1].any()
    assert distances[-1].abs().max() < 1


class Counting(Sgd):
    """Sends how many steps it took in each of three epochs, and at what number the last was."""

    def carry(self, broadcast, state):
        return broadcast["params"].new_zeros(4)

    def along(self, step, broadcast):
        carried = step.carried.clone()
        carried[:, :3] += torch.nn.functional.one_hot(step.epoch, 3)
        carried[:, 3] = step.number
        return torch.zeros_like(step.w), carried

    def message(self, w, broadcast, state, work):
        row = torch.zeros_like(w)
        row[:, :4] = work.carried
        return row, state


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_steps_and_epochs_are_counted_for_each_client(way):
    made, ids = local(Counting(), way=way), np.arange(len(SIZES))
    assert not made.plain
    rows, _ = made.train(ids, {"params": made.network.initial_params}, None, keys(ids))
    wanted = [[1, 1, 1, 2], [3, 3, 3, 8], [0, 0, 0, 0], [1, 1, 1, 2], [3, 3, 3, 8]]
    assert rows[:, :4].tolist() == wanted


def test_silos_that_train_privately_go_the_same_way(tmp_path):
    made, ids = local(Counting()), np.arange(2)
    dp = DpSgd(sampling_rate=0.5)
    ledgers = SiloLedgers(tmp_path / "private/silos", {"id": "x"}, 2, fresh=True, reexecutes=False)
    epochs, broadcast = np.array([3, 2]), {"params": made.network.initial_params}
    rows, _ = PrivateSilos(dp, made, ledgers).train(
        made, ids, broadcast, None, 1, keys(ids), keys(ids), epochs, None
    )
    assert rows[:, :4].tolist() == [[2, 2, 2, 5], [2, 2, 0, 3]]
