"""What is refused of the files that a run keeps, and of a seeded run that they do not determine."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config


def ledger_heads_that_can_be_remade(config: Config) -> Iterator[str]:
    """Heads are kept of a ledger that anybody who has the seed makes again."""
    if config.run.heads and config.run.randomness == "seeded":
        yield (
            "run.heads keeps what nobody may cut off a ledger, but a seeded run's is made again at "
            'will; leave run.heads out, or set run.randomness = "secret"'
        )


def measured_precision_of_a_seeded_run(config: Config) -> Iterator[str]:
    """What a seeded run gives follows from its file, and not from how busy a machine was."""
    if config.run.precision == "fast" and config.run.randomness == "seeded":
        yield (
            'run.precision = "fast" goes by what is measured here, but all that a seeded run gives '
            'follows from its run file; use "mixed" or "full"'
        )


def measures_lost_on_resume(config: Config) -> Iterator[str]:
    """A checkpoint between two evaluations would lose the work that is added up between them."""
    run = config.run
    if run.simulation_metrics and run.checkpoint_every % run.evaluate_every:
        yield (
            f"run.simulation_metrics adds up work between evaluations, every "
            f"{run.evaluate_every} rounds, which a resume from a checkpoint, every "
            f"{run.checkpoint_every}, would lose in part; make run.checkpoint_every a "
            "multiple of run.evaluate_every"
        )
