"""Attacks that read updates, on plain tensors and models of PyTorch's own."""

import math

import numpy as np
import pytest
import torch
from lanes import every_case
from torch import nn
from torch.nn import functional as F

from attacks.privacy.analytic_inversion import recover_candidates, recover_one
from attacks.privacy.gradient_inversion import (
    Search,
    match_direction,
    match_gradients,
    total_variation,
)
from attacks.privacy.image_quality import best_matches, mse, psnr, ssim
from attacks.privacy.label_recovery import label_shares, labels_in_proportion, recover_label


def gradient(model, x, y):
    """The flat gradient `[d]` of the mean cross-entropy, differentiable in x."""
    loss = F.cross_entropy(model(x), y)
    parts = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
    return torch.cat([part.reshape(-1) for part in parts])


def updates(model):
    return lambda x, y: gradient(model, x, y)


def first(model, flat):
    weight, bias = [*model.parameters()][:2]
    size = weight.numel()
    return flat[:size].view_as(weight), flat[size : size + bias.numel()]


def mlp(seed, activation=nn.ReLU):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), activation(), nn.Linear(32, 10))


def cnn(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


@every_case("seed", range(5))
@every_case("scale", [1.0, -0.03])
def test_a_linear_first_layer_gives_one_example_away_exactly(seed, scale):
    model, x = mlp(seed), torch.randn(1, 64)
    update = scale * gradient(model, x, torch.tensor([seed])).detach()
    assert torch.allclose(recover_one(*first(model, update)), x[0], atol=1e-4)
    assert torch.allclose(recover_candidates(*first(model, update), 1), x, atol=1e-4)


def test_all_rows_together_stand_more_noise_than_one():
    model, x = mlp(0), torch.randn(1, 64)
    weight, bias = first(model, gradient(model, x, torch.tensor([3])).detach())
    size = 0.05 * bias.abs().max()
    strongest, all_rows = [], []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        noised = [
            part + size * torch.randn(part.shape, generator=generator) for part in (weight, bias)
        ]
        strongest.append(mse(recover_candidates(*noised, 1), x))
        all_rows.append(mse(recover_one(*noised), x[0]))
    assert np.mean(all_rows) < 0.7 * np.mean(strongest)


def test_neurons_of_one_example_alone_give_it_away_in_a_batch():
    """With as many neurons as this, some are active for one example of the two alone."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 200), nn.ReLU(), nn.Linear(200, 3))
    x, y = torch.randn(2, 8), torch.tensor([0, 2])
    update = gradient(model, x, y).detach()
    recovered = recover_candidates(*first(model, update), 200)
    assert torch.allclose(best_matches(recovered, x), x, atol=1e-3)


def test_what_did_not_move_gives_zeros():
    still = torch.zeros(3, 5), torch.zeros(3)
    assert torch.equal(recover_one(*still), torch.zeros(5))
    assert torch.equal(recover_candidates(*still, 4), torch.zeros(4, 5))


@every_case("make", [mlp, cnn, lambda seed: mlp(seed, nn.Tanh)])
def test_the_label_of_one_example_is_always_told(make):
    for seed in range(25):
        model = make(seed)
        x, label = torch.randn(1, 1, 8, 8), seed % 10
        flat = gradient(model, x, torch.tensor([label])).detach()
        assert recover_label(flat[-10:]) == label


def test_label_counts_of_a_batch_on_a_new_model():
    """Predictions hardly depend on the input there, so that any examples tell them."""
    model = mlp(4)
    y = torch.tensor([0, 0, 0, 4, 4, 7, 9, 9])
    flat = gradient(model, 0.3 * torch.randn(8, 64), y).detach()
    predictions = model(0.3 * torch.randn(50, 64)).softmax(-1).mean(0).expand(10, 10).detach()
    for length, scale in ((1.0, 1.0), (0.2, 0.2), (None, 0.037)):
        shares = label_shares(scale * flat[-10:], predictions, length)
        assert shares.sum() == pytest.approx(1)
        assert labels_in_proportion(shares, 8).tolist() == y.tolist()


def test_label_shares_invert_any_predictions():
    """Against the forward formula: gradient = length (P^T - I) pi."""
    torch.manual_seed(0)
    predictions = torch.randn(5, 5, dtype=torch.float64).softmax(-1)
    shares = torch.tensor([0.1, 0.4, 0.2, 0.25, 0.05], dtype=torch.float64)
    bias = 0.3 * (predictions.T @ shares - shares)
    assert torch.allclose(label_shares(bias, predictions, 0.3).double(), shares, atol=1e-5)
    assert label_shares(torch.zeros(3), torch.eye(3), None).tolist() == pytest.approx([1 / 3] * 3)


def sigmoid_net():
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(216, 4)
    )
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model.double()


def test_deep_leakage_finds_a_tiny_image_on_a_smooth_net():
    model, y = sigmoid_net(), torch.tensor([1])
    x = torch.rand(1, 1, 6, 6, dtype=torch.float64)
    update = gradient(model, x, y).detach()
    search = Search((1, 1, 6, 6), y, 0.0, 1.0)
    recovered = match_gradients(
        updates(model), update, search, 15, torch.Generator().manual_seed(0)
    )
    assert psnr(recovered, x, 1.0) > 40


def blob():
    places = torch.linspace(-1, 1, 6, dtype=torch.float64)
    return torch.exp(-4 * (places[:, None] ** 2 + (places - 0.3) ** 2))[None, None]


def searched(update, iterations=150, seed=0):
    model, y = sigmoid_net(), torch.tensor([1])
    search = Search((1, 1, 6, 6), y, 0.0, 1.0)
    generator = torch.Generator().manual_seed(seed)
    return match_direction(updates(model), update, search, iterations, generator, 1e-4)


def test_the_direction_alone_is_enough():
    """Scaled as a clip scales: nothing is lost."""
    x = blob()
    update = gradient(sigmoid_net(), x, torch.tensor([1])).detach()
    recovered = searched(update)
    assert psnr(recovered, x, 1.0) > 25
    assert torch.allclose(searched(1e-3 * update), recovered, atol=1e-4)
    assert recovered.min() >= 0
    assert recovered.max() <= 1


@pytest.mark.slow
def test_quality_falls_with_noise():
    x = blob()
    update = gradient(sigmoid_net(), x, torch.tensor([1])).detach()
    size = torch.linalg.vector_norm(update) / math.sqrt(len(update))
    quality = []
    for level in (0.0, 0.1, 0.4, 1.6):
        draws = [torch.Generator().manual_seed(seed) for seed in range(3)]
        noises = [torch.randn(update.shape, generator=draw, dtype=update.dtype) for draw in draws]
        guesses = [searched(update + level * size * noise, 60) for noise in noises]
        quality.append(np.mean([psnr(guess, x, 1.0) for guess in guesses]))
    assert all(np.diff(quality) < -1), quality


def brute_force_ssim(x, y, span, size):
    """Wang et al. 2004 by loops over windows and pixels."""
    half = size // 2
    weight = np.array(
        [
            [math.exp(-((i - half) ** 2 + (j - half) ** 2) / 4.5) for j in range(size)]
            for i in range(size)
        ]
    )
    weight /= weight.sum()
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    values = []
    for row in range(x.shape[0] - size + 1):
        for column in range(x.shape[1] - size + 1):
            a, b = (z[row : row + size, column : column + size] for z in (x, y))
            mean_a, mean_b = (weight * a).sum(), (weight * b).sum()
            var_a, var_b = (weight * (a - mean_a) ** 2).sum(), (weight * (b - mean_b) ** 2).sum()
            both = (weight * (a - mean_a) * (b - mean_b)).sum()
            above = (2 * mean_a * mean_b + c1) * (2 * both + c2)
            values.append(above / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)))
    return float(np.mean(values))


@every_case(("shape", "size"), [((14, 13), 11), ((8, 8), 7), ((5, 9), 5)])
def test_ssim_is_the_papers(shape, size):
    rng = np.random.default_rng(0)
    x, y = rng.random(shape) * 4 - 2, rng.random(shape) * 4 - 2
    mixed = 0.7 * x + 0.3 * y
    similarity = ssim(torch.from_numpy(mixed), torch.from_numpy(x), 4.0)
    assert similarity == pytest.approx(brute_force_ssim(mixed, x, 4.0, size), abs=1e-9)
    assert ssim(torch.from_numpy(x), torch.from_numpy(x), 4.0) == pytest.approx(1)


def test_ssim_is_for_images_of_one_shape():
    for pair in ((torch.zeros(4), torch.zeros(4)), (torch.zeros(4, 4), torch.zeros(4, 5))):
        with pytest.raises(ValueError, match="shapes"):
            ssim(*pair, 1.0)


def test_psnr_of_an_equal_image_is_infinite():
    assert psnr(torch.ones(3), torch.ones(3), 1.0) == math.inf
    assert psnr(torch.ones(3), torch.zeros(3), 10.0) == pytest.approx(20)


def test_vectors_have_no_variation():
    assert total_variation(torch.randn(3, 7)) == 0
