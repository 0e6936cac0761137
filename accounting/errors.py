"""Errors of the accounting package."""


class AccountingError(Exception):
    """Base of every error that accounting raises deliberately, with a message for the user."""


class Unaccountable(AccountingError):
    """No accountant has a proven bound for this event, or the arguments are invalid."""


class BudgetExceeded(AccountingError):
    """The next event would exceed the budget. Nothing was charged."""


class Misplaced(AccountingError, OSError):
    """The path of a regular file or folder is a FIFO, a device or a dangling link."""


class LedgerBroken(AccountingError):
    """The ledger was edited, truncated or reordered, or its format is unknown to this version."""
