"""What privfed tells a user who asked for something that cannot be done."""


class PrivfedError(Exception):
    """Base of every error that is not a bug; the message says what to change."""

    exit_code = 2


class Refused(PrivfedError):
    """Bad input, or a combination that has no proof."""


class Busy(Refused):
    """Another process is at it; later the same may well be possible."""


class Broken(PrivfedError):
    """A ledger or a run directory was edited or does not fit together."""

    exit_code = 5
