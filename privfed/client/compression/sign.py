"""Signs: one bit of each number (Bernstein, Wang, Azizzadenesheli & Anandkumar 2018, signSGD) times
the mean size of a row (Karimireddy, Rebjock, Stich & Jaggi 2019, Algorithm 1, "error feedback fixes
signSGD", where the memory is).

With aggregation.rule = "sign_majority" the server takes a majority of them.
"""

from __future__ import annotations

from privfed.client.compression.compression import Biased
from privfed.core.deferred import Tensor
from privfed.core.vector import Shapes


class Sign(Biased):
    """The sign of each number, times the mean size of the row's numbers.

    A client sends d bits and one number. Not linear: the server is sent each row by itself. Biased;
    with error feedback it goes where plain updates go.
    """

    def bits(self, shapes: Shapes) -> float:
        return shapes.length + 32

    def shortened(self, rows: Tensor) -> Tensor:
        return rows.sign() * rows.abs().mean(1, keepdim=True)
