"""Plain local SGD, the local objective of FedAvg (McMahan et al. 2017, Algorithm 1)."""

from __future__ import annotations

from privfed.client.objective import Objective


class Sgd(Objective):
    """Plain local SGD.

    A client steps along its gradient, and sends local model - broadcast model: d numbers.
    """
