"""What is refused of runs that are chosen among others: what charging the choice leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config

_PRIVATE = "[tune] private = true"


def choice_refusals(config: Config) -> Iterator[str]:
    """Every reason why the best of a random number of such runs is not one release with a proof."""
    if config.chosen:
        yield from _nothing_promised(config)
        yield from _other_guarantees(config)
        yield from _uncharged_score(config)
        yield from _tells_the_number(config)


def _nothing_promised(config: Config) -> Iterator[str]:
    """A choice among runs that promise nothing promises nothing."""
    if not config.mechanism.private or config.privacy.epsilon == float("inf"):
        yield (
            f"{_PRIVATE}, but its candidates have no noise; configure privacy.epsilon, or leave it "
            "out"
        )
    if config.void:
        yield f"{_PRIVATE}, but attackers read raw updates, so that nothing is guaranteed"
    if config.audit.canaries:
        yield f"{_PRIVATE}: canaries test single runs, and losing ones stay secret; leave them out"


def _other_guarantees(config: Config) -> Iterator[str]:
    """Only the headline is charged as a choice."""
    if config.shared_noise is not None:
        yield (
            f"{_PRIVATE}: noise that clients share has a second guarantee, of which a choice has "
            'no proof here; use privacy.mechanism = "gaussian", or tune on public data'
        )
    if config.mechanism.private and config.mechanism.trust == "client":
        yield (
            f"{_PRIVATE}: under privacy.mechanism = {config.names['mechanism']!r} epsilon is "
            "against whoever reads what clients send, who sees that of losing candidates, too; "
            'use privacy.mechanism = "gaussian", or tune on public data'
        )
    if config.example_privacy is not None:
        yield (
            f"{_PRIVATE}: examples of silos ([client.privacy]) have a guarantee by themselves, of "
            "which a choice has no proof here; leave it out, or tune on public data"
        )


def _uncharged_score(config: Config) -> Iterator[str]:
    """The score is post-processing of what a run releases, or it is charged."""
    if config.data.holdout == "examples":
        yield (
            f'{_PRIVATE}, but data.holdout = "examples" scores candidates on examples of clients '
            'that train, which nothing charges; use "test" or "clients"'
        )


def _tells_the_number(config: Config) -> Iterator[str]:
    """How many candidates there were has to stay secret."""
    if config.apart:
        yield (
            f"{_PRIVATE}: sites on machines of their own see how many candidates there are, which "
            "voids the bound; tune where the data are, or on public data"
        )
    for key, value in (("run.heads", config.run.heads), ("run.watch", config.run.watch)):
        if value:
            yield (
                f"{_PRIVATE}, but {key} tells of every candidate, and how many there are has to "
                f"stay secret; leave {key} out"
            )
