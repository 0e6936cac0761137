"""How much of the attacked examples one view gave away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from attacks.privacy.image_quality import mse, psnr, ssim
from privfed.leakage.reconstruct import Adversary
from privfed.leakage.views import View


@dataclass(frozen=True)
class ViewQuality:
    """What came out of one view: reconstructions `x` `[N, *features]`, and their quality `[N]`.

    `ssim` is empty where examples are no pictures. `labels` is the part of the labels that were
    found, and None where an adversary had to guess whose they are.
    """

    view: View
    x: Tensor
    mse: tuple[float, ...]
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    labels: float | None

    def to_json(self) -> dict[str, Any]:
        """The view and its medians: in a mean of decibels, one exact find would outweigh all."""
        return {
            "view": self.view.name,
            "seen_by": self.view.who,
            "clients": self.view.clients,
            "clip": self.view.clip if self.view.clip < math.inf else None,
            "noise_deviation": self.view.deviation,
            "epsilon": self.view.epsilon,
            "mse": float(np.median(self.mse)),
            "psnr": float(np.median(self.psnr)),
            "ssim": float(np.median(self.ssim)) if self.ssim else None,
            "labels_found": self.labels,
            "psnr_each": list(self.psnr),
        }


def view_quality(
    view: View, attack: Adversary, reconstructed: Tensor, originals: Tensor, labels: float | None
) -> ViewQuality:
    """How like `originals` the examples `reconstructed` are (both `[N, *features]`), one by one."""
    span = attack.high - attack.low
    pairs: Sequence[tuple[Tensor, Tensor]] = list(zip(reconstructed, originals, strict=True))
    similarity: tuple[float, ...] = ()
    if attack.picture:
        shape = attack.picture
        similarity = tuple(ssim(a.reshape(shape), b.reshape(shape), span) for a, b in pairs)
    return ViewQuality(
        view,
        reconstructed,
        tuple(mse(a, b) for a, b in pairs),
        tuple(psnr(a, b, span) for a, b in pairs),
        similarity,
        labels,
    )
