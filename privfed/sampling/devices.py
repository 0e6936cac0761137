"""How long a round would take on clients' devices: the basic model of the Field Guide (Wang et al.
2021, "A field guide to federated optimization", equation 9).
"""

from __future__ import annotations

from pydantic import Field

from privfed.parts import Part


class Devices(Part):
    """T_round = T_comm + T_comp, of a cohort that works in parallel and is waited for.

    T_comm = down / download + up / upload, bytes of one client over bytes per second; T_comp = the
    longest client's slowdown * simulated seconds + overhead, and the server's own time. The paper's
    estimates of a cross-device system are 0.75 MB/s down, 0.25 MB/s up, a slowdown of 7 against the
    simulation, and 10 s of overhead. A simulated local step takes `step_seconds`, declared, so that
    studies do not depend on the machine they ran on.
    """

    download: float = Field(0.75e6, gt=0)
    """Bytes a second that a device is sent."""
    upload: float = Field(0.25e6, gt=0)
    """Bytes a second that a device sends."""
    slowdown: float = Field(7.0, ge=0)
    """How many times slower than the simulation a device computes."""
    overhead: float = Field(10.0, ge=0)
    """Seconds that a round costs a device beside its steps."""
    server_seconds: float = Field(0.0, ge=0)
    """Seconds of the server in a round."""
    step_seconds: float = Field(0.001, ge=0)
    """Seconds of a simulated local step."""

    def seconds(self, down: float, up: float, steps: int) -> float:
        """The seconds of a round in which a client is sent `down` bytes and sends `up` bytes.

        The client that takes longest takes `steps` local steps.
        """
        communication = down / self.download + up / self.upload
        computation = self.slowdown * steps * self.step_seconds + self.overhead
        return communication + computation + self.server_seconds
