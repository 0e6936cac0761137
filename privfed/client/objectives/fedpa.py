"""FedPA: the mode of the product of clients' posteriors.

Source: Al-Shedivat, Gillenwater, Xing & Rostamizadeh 2021, "Federated learning via posterior
averaging: a new perspective and practical algorithms", sections 3 and 4.

A client's loss is the negative logarithm of its posterior, with mean mu_k and covariance Sigma_k.
The mode of the product of Gaussian posteriors minimises
sum_k (x - mu_k)^T Sigma_k^-1 (x - mu_k) / 2, whose gradient at the broadcast model x is the sum of
Sigma_k^-1 (x - mu_k). Clients send the negatives of these terms, and the server's optimizer takes
their sum as its update.

*Samples* are averages of `window` SGD iterates each, after `burn_in` steps ("iterate-averaged
stochastic gradients": Mandt, Hoffman & Blei 2017). *Covariance*: of n samples with mean m and
sample covariance S, shrunk to the identity,

    Sigma = r I + (1 - r) S,    r = 1 / (1 + (n - 1) rho)

*The product* in O(n^2 d): let u_k be sample k minus the mean of the earlier samples. Then
Sigma / r = I + rho sum_(k=2..n) (k - 1)/k u_k u_k^T, so each sample subtracts one symmetric
rank-one term from the inverse (Sherman-Morrison):

    (Sigma / r)^-1 = I - sum_k s_k s_k^T,    s_k = sqrt(g / (1 + g u_k^T v)) v,
    v = u_k - sum_(j<k) s_j (s_j^T u_k),     g = rho (k - 1) / k
"""

from __future__ import annotations

from collections.abc import Generator

from pydantic import Field

from privfed.client.descent import LocalStep
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Cohorts, Memory, Objective, Work
from privfed.core.deferred import Tensor, torch


class FedPa(Objective):
    """FedPA: updates times the inverse covariance of a client's samples of its posterior.

    A client sends d numbers and receives d + 1 (also the number of earlier rounds); during training
    it stores (samples + 1) d. It takes burn_in + samples * window local steps to draw all samples;
    with fewer steps it has fewer samples, and without samples it sends its plain update. With one
    sample, or rho = 0, FedPA is FedAvg of averaged iterates.

    Under privacy this product is clipped like an update and costs the same, since samples stay with
    the client. Products with an inverse covariance have large norms, so the clip shortens them more
    than updates.
    """

    burn_in: int = Field(0, ge=0)
    """Local steps before the first sample."""
    window: int = Field(5, ge=1)
    """Number of iterates averaged into a sample."""
    samples: int = Field(8, ge=1)
    """Upper bound on a client's samples per round."""
    rho: float = Field(0.01, ge=0)
    """Weight of the samples in the covariance; 0 leaves it at the identity."""
    fedavg_rounds: int = Field(0, ge=0)
    """Number of initial rounds in which clients send plain updates, as in the paper's runs."""

    @property
    def least_steps(self) -> int:
        """Number of local steps up to the first sample."""
        return self.burn_in + self.window

    def init(self, params: Tensor) -> Memory:
        return {"rounds": torch.zeros((), dtype=torch.int64)}

    def prelude(self, params: Tensor, memory: Memory) -> Generator[Exchange, Tensor, Broadcast]:
        yield from ()
        return {"rounds": memory["rounds"].to(params)}

    def carry(self, broadcast: Broadcast, state: Tensor | None) -> Tensor:
        params = broadcast["params"]
        return params.new_zeros((self.samples + 1) * len(params))

    def along(self, step: LocalStep, broadcast: Broadcast) -> tuple[Tensor, Tensor | None]:
        taken = step.number + 1 - self.burn_in
        number, place = -(-taken // self.window), (taken - 1) % self.window + 1
        if taken < 1 or number > self.samples:
            return step.grad, step.carried
        window, mean, *terms = self._parts(step.carried)
        iterate = step.w - step.lr * step.grad
        window = iterate if place == 1 else window + (iterate - window) / place
        if place == self.window:
            away = window - mean
            mean = mean + away / number
            if number > 1:
                before, weight = terms[: number - 2], self.rho * (number - 1) / number
                terms[number - 2] = _term(away, before, weight)
        return step.grad, torch.cat([window, mean, *terms], dim=1)

    def message(
        self, w: Tensor, broadcast: Broadcast, state: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor | None]:
        _, mean, *terms = self._parts(work.carried)
        drawn = ((work.steps - self.burn_in) // self.window).clamp(0, self.samples)[:, None]
        weighed = _without(mean - broadcast["params"], terms) * (1 + (drawn - 1) * self.rho)
        plain = (drawn < 1) | (broadcast["rounds"] < self.fedavg_rounds)
        return torch.where(plain, w - broadcast["params"], weighed), state

    def conclude(
        self, broadcast: Broadcast, released: Tensor, memory: Memory, cohorts: Cohorts
    ) -> tuple[Tensor, Memory]:
        return released, {"rounds": memory["rounds"] + 1}

    def _parts(self, carried: Tensor | None) -> list[Tensor]:
        """Splits `carried` into vectors `[c, d]`.

        Returns the mean of the current window's iterates, the mean of the samples, and the vectors
        s_k (k = 2, ..., `samples`) of the inverse covariance; s_k is zero until sample k is drawn.
        """
        if carried is None:
            raise ValueError("FedPA needs the clients' carried samples, but got none")
        return list(carried.chunk(self.samples + 1, dim=1))


def _without(vector: Tensor, terms: list[Tensor]) -> Tensor:
    """Returns `vector` `[c, d]` minus the sum of s s^T `vector` over all s `[c, d]` in `terms`."""
    products = [term * (term * vector).sum(1, keepdim=True) for term in terms]
    return vector - torch.stack(products).sum(0) if products else vector


def _term(away: Tensor, terms: list[Tensor], weight: float) -> Tensor:
    """Returns s_k `[c, d]` for u_k = `away` and g = `weight`; `terms` are all s_j with j < k."""
    solved = _without(away, terms)
    length = (away * solved).sum(1, keepdim=True)
    return solved * (weight / (1 + weight * length)).sqrt()
