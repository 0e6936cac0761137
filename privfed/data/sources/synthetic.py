"""Synthetic(alpha, beta) of FedProx (Li et al. 2020, section 5.1 and appendix C.1).

For client k: u_k ~ N(0, alpha), W_k and b_k ~ N(u_k, 1); B_k ~ N(0, beta), v_k ~ N(B_k, 1); x ~
N(v_k, diag(j^-1.2)), y = argmax(softmax(W_k x + b_k)). alpha controls the heterogeneity of the
clients' true models, beta that of their data. With `iid`, all clients share one W and b ~ N(0, 1),
and v = 0.

As in the authors' generator, alpha and beta are standard deviations. A client's number of examples
is `size_min` plus a log-normal draw with parameters `size_mean` and `size_std`, rounded down, at
least 1 and at most `size_max`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field
from scipy.special import ndtri

from privfed.core.deferred import torch
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.data.federation import Examples

_QUANTILES = 10_000
"""Number of quantiles used for the expected size of a client."""


class Synthetic(Part):
    """Synthetic(alpha, beta) of FedProx: one generating model per client. x `[N, features]`.

    The public test set consists of further clients of the same distribution.
    """

    alpha: float = Field(1.0, ge=0)
    """Heterogeneity of clients' true models."""
    beta: float = Field(1.0, ge=0)
    """Heterogeneity of clients' examples."""
    iid: bool = False
    """Whether all clients share one true model and one distribution."""
    features: int = Field(60, ge=1, le=1_000_000)
    """Number of features of an example."""
    classes: int = Field(10, ge=2, le=1_000_000)
    """Number of classes."""
    size_min: int = Field(50, ge=0)
    """Smallest number of examples of a client; 0 counts as 1."""
    size_mean: float = Field(4.0, ge=-20, le=20)
    """Mean of the logarithm of a client's number of examples in excess of `size_min`."""
    size_std: float = Field(2.0, ge=0, le=10)
    """Standard deviation of the logarithm of the number in excess of `size_min`."""
    size_max: int = Field(10_000, ge=1)
    """Largest number of examples of a client."""
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = False

    @property
    def squared_norm(self) -> None:
        """None, since normal features have no bound."""
        return None

    def sources(self, seed: int) -> tuple[str, ...]:
        """Returns the origin, which contains the seed: another seed gives other clients."""
        return (f"synthetic: seed {seed}",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._generate("synthetic", clients, streams)

    def load_test(self, clients: int, streams: Streams) -> Examples:
        return self._generate("synthetic/public", clients, streams)

    def _generate(self, stream: str, clients: int, streams: Streams) -> Examples:
        sizes = self._sizes(streams.at(f"{stream}/sizes").generator(), clients)
        shared = self._client_model(streams.at("synthetic/shared").generator(), 0.0, 0.0)
        scale = np.arange(1, self.features + 1) ** -0.6
        xs, ys = [], []
        for client, size in enumerate(sizes):
            rng = streams.at(stream, client).generator()
            weight, bias, center = (
                shared if self.iid else self._client_model(rng, self.alpha, self.beta)
            )
            center = np.zeros_like(center) if self.iid else center
            x = center + scale * rng.standard_normal((size, self.features))
            xs.append(x.astype(np.float32))
            ys.append(np.argmax(x @ weight + bias, axis=1))
        return Examples(
            torch.from_numpy(np.concatenate(xs)),
            torch.from_numpy(np.concatenate(ys).astype(np.int64)),
            self.classes,
            owners=np.repeat(np.arange(clients), sizes),
            typical=self._expected_size(),
        )

    def _sizes(self, rng: np.random.Generator, clients: int) -> np.ndarray:
        return self._size(rng.normal(size=clients))

    def _expected_size(self) -> float:
        """Returns the expected size of a client: the mean of its equally probable quantiles."""
        return float(self._size(ndtri((np.arange(_QUANTILES) + 0.5) / _QUANTILES)).mean())

    def _size(self, draws: np.ndarray) -> np.ndarray:
        """Returns the sizes of clients `[n]` for standard normal `draws` `[n]`."""
        sizes = np.exp(np.minimum(self.size_mean + self.size_std * draws, 30.0))
        return np.clip(sizes.astype(np.int64) + self.size_min, 1, self.size_max)

    def _client_model(
        self, rng: np.random.Generator, alpha: float, beta: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns W `[features, classes]`, b `[classes]` and v `[features]`, the mean of features.

        Entries have standard deviation 1 around two random centers: that of W and b has standard
        deviation `alpha`, that of v `beta`.
        """
        u, b = rng.normal(0, alpha), rng.normal(0, beta)
        weight = rng.normal(u, 1, (self.features, self.classes))
        bias = rng.normal(u, 1, self.classes)
        return weight, bias, rng.normal(b, 1, self.features)
