"""What accounting refuses, and why."""


class AccountingError(Exception):
    """Base of every error that accounting raises on purpose; the message is meant for the user."""


class Unaccountable(AccountingError):
    """No proven accountant covers this event, or the question about it makes no sense."""


class BudgetExceeded(AccountingError):
    """The next event would spend more than the budget. Nothing was charged."""


class Misplaced(AccountingError, OSError):
    """Something else lies where a file or a folder has to be."""


class LedgerBroken(AccountingError):
    """The ledger was edited, cut, reordered, or is of a format that this version does not know."""
