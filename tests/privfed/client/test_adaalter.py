"""Local AdaAlter: adaptive local rates, which follow from everybody's squared gradients."""

import pytest
import torch
from helpers import set_fields
from papers import full_batches, gradients

from privfed.client.objective import Cohorts, Sgd
from privfed.client.objectives.adaalter import AdaAlter
from privfed.server.fedopt import FedAvg


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_it_is_its_papers_algorithm(tmp_path, way):
    """Three rounds of two local steps, written out in plain loops."""
    objective = AdaAlter(b0=0.3, epsilon=0.5, square_scale=0.2)
    rounds = full_batches(tmp_path, objective, way=way, server=FedAvg())
    gradient, lr = gradients(rounds), 0.5
    x = rounds.state.params.clone()
    known = torch.full_like(x, 0.3**2)
    for _ in range(3):
        ends, sums = [], []
        for client in range(4):
            w, squares = x.clone(), known.clone()
            for t in (1, 2):
                g = gradient(client, w)
                w = w - lr * g / (known + t * 0.5**2).sqrt()
                squares = squares + g.square()
            ends.append(w)
            sums.append(squares)
        x, known = torch.stack(ends).mean(0), torch.stack(sums).mean(0)
    after = rounds.run(3)
    torch.testing.assert_close(after.params, x, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(after.objective["squares"], known, rtol=1e-3, atol=1e-5)


def test_where_its_sums_start_from_much_it_is_fedavg(tmp_path):
    ours = full_batches(tmp_path / "ours", AdaAlter(b0=1e4, epsilon=0.0), server=FedAvg())
    set_fields(ours.local, lr=0.5e4)
    plain = full_batches(tmp_path / "plain", Sgd(), server=FedAvg())
    torch.testing.assert_close(ours.run(3).params, plain.run(3).params, rtol=1e-4, atol=1e-6)


def test_noise_never_lowers_what_was_added_up():
    objective, broadcast = AdaAlter(square_scale=0.5), {"params": torch.zeros(2)}
    memory = objective.init(broadcast["params"])
    released = torch.tensor([0.1, -0.1, 2.0, -2.0])
    update, memory = objective.conclude(broadcast, released, memory, Cohorts(10, 4.0))
    assert update.tolist() == pytest.approx([0.1, -0.1])
    assert memory["squares"].tolist() == [5.0, 1.0]


def test_squares_that_no_honest_client_sends_are_cut_off():
    """Or one client alone could take back what all others have seen."""
    row = torch.tensor([[-1.0, 2.0, -3.0, 4.0]])
    assert AdaAlter().admitted(row).tolist() == [[-1.0, 2.0, 0.0, 4.0]]
