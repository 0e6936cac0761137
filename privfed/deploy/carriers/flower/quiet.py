"""What keeps Flower's programs from calling home: every process that privfed starts has it."""

from __future__ import annotations

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Telemetry, the question for updates (which sends version and system), and installing packages at
a run's start, all off. Each covers nothing of the others; services set all three."""
