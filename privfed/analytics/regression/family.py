"""Families of generalized linear models, with public bounds on what a client adds to their sums.

Let x be a client's row of the design, of norm at most B; y its outcome; mu the mean, which is a
function of the linear predictor x b; r = y - mu; and w the derivative of mu with respect to x b. At
coefficients b that are public, a client adds

  (a r x, c w x x^T, e r^2, d)

to the sums for score, information, squared residuals, and usable clients. The matrix is added as
its upper triangle, with off-diagonal entries multiplied by sqrt(2), so that the norm of these
entries is that of the matrix, w |x|^2. A family's `amplitudes` a, c, e and d are such that the norm
of a client's vector is at most 1, for any x of norm at most B and any y within its bounds:

- linear: mu = x b at b = 0, y in [-1, 1], w = 1. With a = sqrt(2 B) k, c = k, e = B k and
  k = sqrt(1 - d^2) / (B^2 + B), the squared norm is k^2 (|x|^2 + B y^2)^2 + d^2 <= 1.
- logistic: y is 0 or 1, so w = |r| (1 - |r|). With a^2 = (1 - d^2) / B^2, c^2 = 10 / B^4 and e = 0,
  the squared norm is at most (1 - d^2) r^2 + 10 r^2 (1 - |r|)^2 + d^2. That is at most 1, because
  10 <= 0.95 (1 + |r|) / (r^2 (1 - |r|)), whose least value is 0.95 times the fifth power of the
  golden ratio, 10.5.
- poisson: y is clipped to [0, M] and mu to [0, M/2], w = mu. With a^2 = 0.85 / (B M)^2,
  c^2 = 2.75 / (B^2 M)^2, e^2 = 0.1 / M^4 and m = mu / M, the squared norm is at most
  0.85 (1 - m)^2 + 2.75 m^2 + 0.1 (1 - m)^4 + d^2. That is convex in m, 1 at m = 0, and 0.96 at
  m = 1/2.

Here d^2 = 0.05. The round clips vectors to norm 1 in any case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol

from privfed.core.deferred import Tensor, torch

_USABLE = 0.05
"""d^2 in the module's docstring."""
_LARGEST_LOG = 30.0


class Amplitudes(NamedTuple):
    """Factors a, c, e and d by which the entries of a client's vector are multiplied.

    Attributes:
      score: a, the factor of the score.
      information: c, that of the information.
      square: e, that of the squared residual.
      usable: d, that of the count of usable clients.
    """

    score: float
    information: float
    square: float
    usable: float


class Family(Protocol):
    """A family of outcomes of a generalized linear model; symbols are those of the module's
    docstring.

    Attributes:
      label: the name of the family in texts.
      ratio: name of the exponential of a coefficient; "" if it has no meaning.
      named: True if an outcome is an event that occurred or not, False if it is a number.
      linear: whether mu = x b; outcomes are then scaled to [-1, 1], and one round at b = 0
        suffices.
      exposed: whether clients may have exposures.
      limit: largest linear predictor at which mu is not limited to its upper bound; infinite if mu
        is never limited.
      burn_in: number of first rounds that are left out of averages: their coefficients are still
        far from the estimate.
    """

    label: ClassVar[str]
    ratio: ClassVar[str]
    named: ClassVar[bool]
    linear: ClassVar[bool]
    exposed: ClassVar[bool]
    limit: ClassVar[float]
    burn_in: ClassVar[int]

    def amplitudes(self, squared_norm: float, most: float) -> Amplitudes:
        """Returns the factors with which a client's vector has norm at most 1.

        Args:
          squared_norm: B^2.
          most: M, the largest outcome.
        """

    def moments(self, predictor: Tensor, most: float) -> tuple[Tensor, Tensor]:
        """Returns mu and w for linear predictors `[...]`, both of the same shape."""

    def first(self, score: float, information: float) -> float:
        """Returns the intercept of the model without covariates, limited to proportions of 0.02 to
        0.98 (logistic) or to a magnitude of 3 (Poisson); 0 for linear regression.

        Args:
          score: sum of r over clients, at coefficients 0.
          information: sum of w over clients, at coefficients 0.
        """

    def totals(self, score: float, information: float) -> tuple[float, ...]:
        """Returns totals over clients that must be visible through the noise for an estimate.

        These are the numbers of events and of non-events (logistic), or the sum of counts
        (Poisson); () for linear regression. The arguments are those of `first`.
        """

    def constant(self, most: float) -> float:
        """Returns the constant that is added to the linear predictor x b: log(M/8) (Poisson) or 0.

        `most` is M, the largest outcome.
        """


class LinearFamily:
    """Linear regression of outcomes in [-1, 1], from one sum at coefficients 0."""

    label: ClassVar[str] = "linear"
    ratio: ClassVar[str] = ""
    named: ClassVar[bool] = False
    linear: ClassVar[bool] = True
    exposed: ClassVar[bool] = False
    limit: ClassVar[float] = math.inf
    burn_in: ClassVar[int] = 0

    def amplitudes(self, squared_norm: float, most: float) -> Amplitudes:
        norm = math.sqrt(squared_norm)
        each = math.sqrt(1.0 - _USABLE) / (squared_norm + norm)
        return Amplitudes(math.sqrt(2.0 * norm) * each, each, norm * each, math.sqrt(_USABLE))

    def moments(self, predictor: Tensor, most: float) -> tuple[Tensor, Tensor]:
        return predictor, torch.ones_like(predictor)

    def first(self, score: float, information: float) -> float:
        return 0.0

    def totals(self, score: float, information: float) -> tuple[float, ...]:
        return ()

    def constant(self, most: float) -> float:
        return 0.0


class LogisticFamily:
    """Logistic regression of outcomes 0 and 1."""

    label: ClassVar[str] = "logistic"
    ratio: ClassVar[str] = "odds ratio"
    named: ClassVar[bool] = True
    linear: ClassVar[bool] = False
    exposed: ClassVar[bool] = False
    limit: ClassVar[float] = math.inf
    burn_in: ClassVar[int] = 4

    def amplitudes(self, squared_norm: float, most: float) -> Amplitudes:
        score = math.sqrt((1.0 - _USABLE) / squared_norm)
        return Amplitudes(score, math.sqrt(10.0) / squared_norm, 0.0, math.sqrt(_USABLE))

    def moments(self, predictor: Tensor, most: float) -> tuple[Tensor, Tensor]:
        mean = torch.sigmoid(predictor)
        return mean, mean * (1.0 - mean)

    def first(self, score: float, information: float) -> float:
        share = min(max(0.5 + score / (4.0 * max(information, 1e-9)), 0.02), 0.98)
        return math.log(share / (1.0 - share))

    def totals(self, score: float, information: float) -> tuple[float, ...]:
        return 2.0 * information + score, 2.0 * information - score

    def constant(self, most: float) -> float:
        return 0.0


class PoissonFamily:
    """Poisson regression of counts up to M; expected counts are limited to M/2.

    The mean is M/8 exp(x b). If there are exposures, it is multiplied by the client's exposure
    divided by the largest one.
    """

    label: ClassVar[str] = "Poisson"
    ratio: ClassVar[str] = "rate ratio"
    named: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    exposed: ClassVar[bool] = True
    limit: ClassVar[float] = math.log(4.0)
    burn_in: ClassVar[int] = 4

    def amplitudes(self, squared_norm: float, most: float) -> Amplitudes:
        return Amplitudes(
            math.sqrt(0.85 / squared_norm) / most,
            math.sqrt(2.75) / (squared_norm * most),
            math.sqrt(0.1) / most**2,
            math.sqrt(_USABLE),
        )

    def moments(self, predictor: Tensor, most: float) -> tuple[Tensor, Tensor]:
        logarithm = (predictor + self.constant(most)).clamp(-_LARGEST_LOG, _LARGEST_LOG)
        mean = torch.exp(logarithm).clamp(max=most / 2.0)
        return mean, mean

    def first(self, score: float, information: float) -> float:
        return min(max(math.log(max(1.0 + score / max(information, 1e-9), 0.05)), -3.0), 3.0)

    def totals(self, score: float, information: float) -> tuple[float, ...]:
        return (information + score,)

    def constant(self, most: float) -> float:
        return math.log(most / 8.0)


FAMILIES: Mapping[str, Family] = {
    "logistic": LogisticFamily(),
    "linear": LinearFamily(),
    "poisson": PoissonFamily(),
}
