"""Products of an approximate (L-BFGS) Hessian and a vector, from differences of models and
gradients.
"""

from __future__ import annotations

from defenses.deferred import Tensor, torch


def hessian_product(moves: Tensor, changes: Tensor, vector: Tensor) -> Tensor:
    """Returns B v, with B the L-BFGS matrix of p model differences S and gradient differences Y.

    With SY = S Y^T, L its strictly lower part, D its diagonal and sigma = y.s / s.s of the newest
    pair: B v = sigma v - [sigma S^T, Y^T] M^-1 [sigma S v; Y v], where M = [[sigma S S^T, L], [L^T,
    -D]]. Computed in float64, O(p^2 d), with a pseudo-inverse, since the differences of a
    converging model are linearly dependent. Gradient differences of the opposite sign (as of
    updates) give a result of the opposite sign.

    Args:
      moves: model differences S, the oldest first, shape [p, d].
      changes: gradient differences Y, shape [p, d].
      vector: vector v, shape [d].

    Source: Byrd, Nocedal & Schnabel 1994, "Representations of quasi-Newton matrices and their use
    in limited memory methods", theorem 2.3 and equation 3.1.
    """
    s, y, v = moves.double(), changes.double(), vector.double()
    crossed, squared = s @ y.T, s @ s.T
    sigma = crossed[-1, -1] / squared[-1, -1]
    lower = crossed.tril(-1)
    above = torch.cat([sigma * squared, lower], dim=1)
    below = torch.cat([lower.T, -torch.diag(crossed.diagonal())], dim=1)
    weights = torch.linalg.pinv(torch.cat([above, below])) @ torch.cat([sigma * (s @ v), y @ v])
    product: Tensor = sigma * v - sigma * (weights[: len(s)] @ s) - weights[len(s) :] @ y
    return product.to(vector)
