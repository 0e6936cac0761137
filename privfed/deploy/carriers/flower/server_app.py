"""The coordinator's Flower server app: trains with a Flower run's grid as carrier."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privfed.deploy.carriers.engine_run import train_over
from privfed.deploy.carriers.flower.grid_mail import GridMail


def main(grid: Grid, context: Context) -> None:
    """Trains or resumes the run that Flower's run configuration names; raises like `train_over`."""
    train_over(GridMail(grid), context.run_config)


app = ServerApp()
app.main()(main)
