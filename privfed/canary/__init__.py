"""Canaries in other people's pipelines: secret directions and coins, and a client that sends them.

This room imports NumPy alone, so that it can be carried to wherever clients run.
"""

from __future__ import annotations

from privfed.canary.client import CanaryClient as Client
from privfed.canary.folder import participants as participants

__all__ = ["Client", "participants"]
