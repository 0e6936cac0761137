"""What a trained model lacks, where a part of it stays with each client."""

from __future__ import annotations

from privfed.models.network import Network


def missing_part(network: Network) -> str:
    """What of `network` clients keep, so that nobody else has it trained; empty for nothing."""
    local = network.local
    if not local.names:
        return ""
    named = ", ".join(local.names[:4]) + (", …" if len(local.names) > 4 else "")
    return (
        f"{local.length} of the numbers of this model ({named}) stay with each client "
        "(model.local), and stand here untrained, as newcomers begin: it is worth what "
        "it is with a client's own"
    )
