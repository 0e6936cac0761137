"""Canaries for other pipelines: secret directions and bits, and a client that sends them.

This package imports only NumPy, so that it can run wherever clients run.
"""

from __future__ import annotations

from privfed.canary.client import CanaryClient as Client
from privfed.canary.folder import participants as participants

__all__ = ["Client", "participants"]
