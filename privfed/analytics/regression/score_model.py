"""The model whose gradient is a client's score and information, and Newton's method on their sums.

The parameters are one vector: the k coefficients, then one entry for each further entry of a
client's vector (`privfed.analytics.regression.family`). The output is the inner product of that
vector, taken as a constant, with the parameters, and the loss is minus the output. One step of
gradient descent at rate 1 then adds exactly the client's vector: a round of training releases the
noised sums of score and information at the current coefficients.

The server's optimizer is post-processing of these sums. In the first round it sets the intercept,
which has a closed form, and then takes Newton's steps. After `burn_in` rounds it averages the sums
of all later rounds: with averages b of coefficients, U of scores and A of information, the estimate
is b + A^-1 U. Noise is independent over rounds, so averaging over m rounds divides its variance by
m, while the score at each round's coefficients has the same sampling error to first order.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from privfed.analytics.regression.family import FAMILIES, Amplitudes
from privfed.core.deferred import Tensor, nn, torch
from privfed.core.parts import Part
from privfed.server.optimizer import State, WithRate

FamilyName = Literal["logistic", "linear", "poisson"]
_STEP, _LARGEST, _LEAST = 2.0, 20.0, 0.02
"""Largest change of a coefficient in a step, largest magnitude of a coefficient, and least
eigenvalue of the information relative to its largest one."""


class _Scored(Part):
    """Public constants of a regression's sums, which the model and the optimizer share."""

    family: FamilyName
    coefficients: int = Field(ge=1, le=100)
    """Number k of coefficients, including the intercept."""
    squared_norm: float = Field(gt=0)
    """Upper bound on the squared norm of a row of the design."""
    most: float = Field(gt=0)
    """Largest outcome M after scaling."""

    @property
    def amplitudes(self) -> Amplitudes:
        """The factors of the entries of a client's vector."""
        return FAMILIES[self.family].amplitudes(self.squared_norm, self.most)

    @property
    def length(self) -> int:
        """The number of entries of a client's vector."""
        return vector_length(self.coefficients)


def vector_length(coefficients: int) -> int:
    """Returns the number of entries of a client's vector in a regression with `coefficients`
    coefficients.
    """
    return coefficients + coefficients * (coefficients + 1) // 2 + 3


class ScoreModel(_Scored):
    """A model whose gradient is a client's vector of score and information.

    Inputs are `[B, k + 3]`: the client's row of the design (zeros if it is unusable or absent), the
    outcome, the logarithm of the exposure, and 1 if the client's row has no usable entries, else 0.
    """

    linear: ClassVar[bool] = True

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        return _module(self)


def _module(model: ScoreModel) -> nn.Module:
    k, family, most = model.coefficients, FAMILIES[model.family], model.most
    rows, columns = torch.triu_indices(k, k)
    doubled = torch.where(rows == columns, 1.0, math.sqrt(2.0))
    by = model.amplitudes

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sums = nn.Parameter(torch.zeros(model.length))

        def forward(self, x: Tensor) -> Tensor:
            design, y, offset, unusable = x[..., :k], x[..., k], x[..., k + 1], x[..., k + 2]
            mean, weight = family.moments(design @ self.sums[:k].detach() + offset, most)
            usable = design[..., 0]
            residual = (y - mean) * usable
            added = torch.cat(
                [
                    by.score * residual[..., None] * design,
                    by.information
                    * weight[..., None]
                    * design[..., rows]
                    * design[..., columns]
                    * doubled,
                    torch.stack(
                        [
                            by.square * residual**2,
                            by.usable * usable,
                            unusable,
                        ],
                        dim=-1,
                    ),
                ],
                dim=-1,
            )
            return (added.detach() * self.sums).sum(-1, keepdim=True)

    return Scores()


class Newton(_Scored, WithRate):
    """Newton's method on noised sums of score and information, averaged after `burn_in` rounds.

    A step of the optimizer returns a model whose first k parameters are the new coefficients, and
    whose others are zero. The state holds

    - sums over the averaged rounds: `score` `[k]`, `others` (all further entries of the vector)
      `[length - k]`, and `coefficients` `[k]`; and the number `rounds` of these rounds;
    - `all_rounds`, the number of all rounds, and `all_others`, the sum of their further entries,
      without the first round if `burn_in` is positive;
    - `first`, score and information of the intercept in the first round, if `burn_in` is positive;
    - `change`, the change of the coefficients in the last averaged round, `[k]`.
    """

    burn_in: int = Field(0, ge=0)
    """Number of first rounds that are left out of the averages."""

    def init(self, params: Tensor) -> State:
        lengths = {
            "score": self.coefficients,
            "others": self.length - self.coefficients,
            "coefficients": self.coefficients,
            "rounds": 1,
            "all_others": self.length - self.coefficients,
            "all_rounds": 1,
            "first": 2,
            "change": self.coefficients,
        }
        return {
            name: params.new_zeros(length, dtype=torch.float64) for name, length in lengths.items()
        }

    def step(self, params: Tensor, delta: Tensor, state: State) -> tuple[Tensor, State]:
        k, number = self.coefficients, int(state["all_rounds"].item())
        b, score, others = params[:k].double(), delta[:k].double(), delta[k:].double()
        done = {**state, "all_rounds": state["all_rounds"] + 1}
        if self.burn_in and number == 0:
            by = self.amplitudes
            done["first"] = torch.stack([score[0] / by.score, others[0] / by.information])
            intercept = b.new_zeros(k)
            intercept[0] = FAMILIES[self.family].first(*done["first"].tolist())
            return self._model(params, b + intercept), done
        done["all_others"] = state["all_others"] + others
        if number < self.burn_in:
            return self._model(params, b + self._step(score, done["all_others"] / number)), done
        done |= {
            "score": state["score"] + score,
            "others": state["others"] + others,
            "coefficients": state["coefficients"] + b,
            "rounds": state["rounds"] + 1,
        }
        m = done["rounds"]
        moved = done["coefficients"] / m + self._step(done["score"] / m, done["others"] / m)
        done["change"] = moved - b
        return self._model(params, moved), done

    def _step(self, score: Tensor, others: Tensor) -> Tensor:
        """Returns a step of Newton's method, of at most `_STEP` in each coefficient.

        Eigenvalues of the information are raised to at least `_LEAST` of the largest one, as noise
        may hide them.
        """
        matrix = information(others, self.coefficients) / self.amplitudes.information
        values, vectors = torch.linalg.eigh(matrix)
        values = values.clamp(min=max(_LEAST * float(values.max()), 1e-12))
        step: Tensor = vectors @ (vectors.T @ (score / self.amplitudes.score) / values)
        return step.clamp(-_STEP, _STEP)

    def _model(self, params: Tensor, coefficients: Tensor) -> Tensor:
        """Returns the parameters of a model, of the shape and type of `params`, with `coefficients`
        limited to the magnitude `_LARGEST`.
        """
        moved = torch.zeros_like(params)
        moved[: self.coefficients] = coefficients.clamp(-_LARGEST, _LARGEST).to(params.dtype)
        return moved


def information(others: Tensor, coefficients: int) -> Tensor:
    """Returns the symmetric information matrix `[k, k]`, still multiplied by its factor c.

    Args:
      others: a client's vector, or a sum of such vectors, without the score, `[length - k]`; it
        begins with the upper triangle of the matrix, in which entries off the diagonal are
        multiplied by sqrt(2); the function undoes that.
      coefficients: number k of coefficients.
    """
    rows, columns = torch.triu_indices(coefficients, coefficients)
    halved = torch.where(rows == columns, 1.0, math.sqrt(0.5)).to(others)
    matrix = others.new_zeros(coefficients, coefficients)
    matrix[rows, columns] = matrix[columns, rows] = others[: len(rows)] * halved
    return matrix
