"""Plain local SGD, the local objective of FedAvg (McMahan et al. 2017, Algorithm 1)."""

from __future__ import annotations

from privfed.client.objective import Objective


class Sgd(Objective):
    """Plain local SGD.

    direction = gradient; a client sends delta = local - broadcast, d numbers.
    """
