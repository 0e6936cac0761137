"""SlowMo: server momentum in units of the clients' rate (Wang, Tantia, Ballas & Rabbat 2020,
"SlowMo: improving communication-efficient distributed SGD with slow momentum", Algorithm 1).

With gamma_t the clients' rate in round t, x_t the model and x_t,tau the average of local models:

    u <- beta u + (x_t - x_t,tau) / gamma_t
    x_(t+1) = x_t - alpha gamma_t u

Only by what factor gamma_t differs between rounds matters, so gamma_t is the factor of
client.schedule here. Where that is constant, SlowMo is FedAvgM; where rates fall, FedAvgM goes on
with the long steps of former rounds, and SlowMo with steps of today's length.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from privfed.server.fedavgm import FedAvgM


class SlowMo(FedAvgM):
    """Momentum over updates that are divided by the clients' rate of their round.

    It reads released aggregates and public constants only. Under a constant client.schedule it is
    FedAvgM; with momentum 0 it is FedAvg.
    """

    in_client_rates: ClassVar[bool] = True

    lr: float = Field(1.0, ge=0)
    """The server's learning rate: alpha."""
    momentum: float = Field(0.7, ge=0, lt=1)
    """The slow momentum: beta; 0 is FedAvg."""
