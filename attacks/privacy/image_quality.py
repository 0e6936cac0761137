"""Similarity of a reconstruction to its original: MSE, PSNR, SSIM, and matching within a batch."""

from __future__ import annotations

import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

_WINDOW, _SIGMA = 11, 1.5
_K1, _K2 = 0.01, 0.03


def mse(reconstruction: Tensor, original: Tensor) -> float:
    """Returns the mean squared error of two tensors of equal shape."""
    return float((reconstruction.double() - original.double()).square().mean())


def psnr(reconstruction: Tensor, original: Tensor, span: float) -> float:
    """Returns the peak signal-to-noise ratio in decibels, 10 log10(span^2 / MSE).

    It is infinite if the tensors are equal.

    `span` is the width of the range of possible values.

    >>> round(psnr(torch.full((4,), 0.1), torch.zeros(4), 1.0), 4)
    20.0
    """
    error = mse(reconstruction, original)
    return math.inf if error == 0 else 10 * math.log10(span**2 / error)


def ssim(reconstruction: Tensor, original: Tensor, span: float) -> float:
    """Returns the mean structural similarity of two images: 1 if equal, near 0 if unrelated.

    SSIM = (2 mu_x mu_y + C1)(2 s_xy + C2) / ((mu_x^2 + mu_y^2 + C1)(s_x^2 + s_y^2 + C2)), averaged
    over every window inside the image, with C1 = (0.01 span)^2 and C2 = (0.03 span)^2. Means,
    variances and covariance are under a Gaussian of standard deviation 1.5 on 11 x 11 pixels, or on
    the largest odd number that fits a smaller image.

    Args:
      reconstruction: image, shape [..., h, w].
      original: image of the same shape.
      span: width of the range of possible values.

    Raises:
      ValueError: if shapes differ, or if the tensors have fewer than two dimensions.

    Source: Wang, Bovik, Sheikh & Simoncelli 2004, equation 13.
    """
    if reconstruction.shape != original.shape or reconstruction.dim() < 2:
        raise ValueError(
            f"the images have shapes {tuple(reconstruction.shape)} and {tuple(original.shape)}; "
            "expected one shape, [height, width] or [channels, height, width]"
        )
    height, width = reconstruction.shape[-2:]
    window = gaussian_window(min(_WINDOW, height, width))
    x, y = (image.double().reshape(-1, 1, height, width) for image in (reconstruction, original))

    def local(image: Tensor) -> Tensor:
        return F.conv2d(image, window[None, None])

    mean_x, mean_y = local(x), local(y)
    var_x, var_y = local(x * x) - mean_x**2, local(y * y) - mean_y**2
    covariance = local(x * y) - mean_x * mean_y
    c1, c2 = (_K1 * span) ** 2, (_K2 * span) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return float((luminance * (2 * covariance + c2) / (var_x + var_y + c2)).mean())


def gaussian_window(most: int) -> Tensor:
    """Returns a Gaussian window `[n, n]` of sum 1, where n is the largest odd number up to `most`.

    >>> gaussian_window(4).shape
    torch.Size([3, 3])
    """
    size = most if most % 2 else max(most - 1, 1)
    places = torch.arange(size, dtype=torch.float64) - size // 2
    line = torch.exp(-places.square() / (2 * _SIGMA**2))
    return torch.outer(line, line) / line.sum() ** 2


def best_matches(reconstructions: Tensor, originals: Tensor) -> Tensor:
    """Returns, for each of `originals` `[B, *]`, the assigned one of `reconstructions` `[M, *]`, M
    >= B.

    Each reconstruction is assigned once at most; the assignment minimises the sum of squared
    errors. A reconstructed batch has no order, so it is scored in the order that is best for the
    attacker.

    >>> best_matches(torch.tensor([[5.0], [0.0], [2.0]]), torch.tensor([[2.1], [4.0]]))
    tensor([[2.],
            [5.]])
    """
    far = torch.cdist(originals.flatten(1).double(), reconstructions.flatten(1).double()).square()
    _, columns = linear_sum_assignment(far.cpu().numpy())
    return reconstructions[torch.from_numpy(columns)]
