"""What is refused where clients remember something between rounds."""

from __future__ import annotations

from collections.abc import Iterator

from accounting.noises import Gaussian
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled
from privfed.config.config import Config


def client_state_refusals(config: Config) -> Iterator[str]:
    """Every reason why clients cannot keep a state (`config.keeping`) here."""
    if config.keeping and not config.by_sites:  # which keep none
        yield from _state_that_tells_of_others(config)
        yield from _clients_that_do_not_return(config)
        if config.objective.sums_states:
            yield from _clients_that_are_absent(config)
            yield from _states_weighed_by_examples(config)


def _instead(config: Config) -> str:
    """What to use where clients can keep nothing."""
    fed_back = config.compression.keeps and not config.objective.keeps
    return "compression.error_feedback = false" if fed_back else "another objective"


def _state_that_tells_of_others(config: Config) -> Iterator[str]:
    """Amplification is by a draw for which a state that tells when one took part has no proof."""
    mechanism = config.mechanism
    release = config.sampler.witness(0, config.data.clients).release
    if not mechanism.private or mechanism.trust == "client" or release is None:
        return
    if not isinstance(release, Gaussian | PoissonSampled | Separated):
        yield (
            f"{config.keeping} has each client remember when it "
            f"took part, and under cohort.sampler = {config.names['sampler']!r} no amplification "
            'is proved for that; use "poisson", "full" or "cyclic"'
        )


def _clients_that_do_not_return(config: Config) -> Iterator[str]:
    """A state is of use to a client that comes back."""
    count = config.messages().keeps
    numbers = ("d " if count == 1 else f"{count} d ") if count else ""
    if config.data.setting == "cross_device":
        yield (
            f"{config.keeping} has each client remember {numbers}"
            "numbers from round to round, so the same clients have to return, which phones do not; "
            f'use data.setting = "cross_silo" if yours do, or {_instead(config)}'
        )


def _clients_that_are_absent(config: Config) -> Iterator[str]:
    """The server counts who has taken part by who was drawn, and not all who were drawn came."""
    if config.availability.varies or config.client.drop_stragglers or config.cohort.dropout:
        yield (
            f"client.objective = {config.names['objective']!r} counts who has taken part by the "
            'sampler alone; set cohort.availability = "always", cohort.dropout = 0 and '
            "client.drop_stragglers = false"
        )


def _states_weighed_by_examples(config: Config) -> Iterator[str]:
    """Sums of states count every client alike."""
    if config.aggregation.weights == "examples":
        yield (
            'aggregation.weights is "examples", but with client.objective = '
            f"{config.names['objective']!r} the server sums what clients remember, each alike; use "
            '"uniform" or "auto"'
        )
