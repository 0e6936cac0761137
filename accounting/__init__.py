"""Privacy accounting: events, accountants, calibration and the ledger.

Usable on its own with plain numbers; imports no torch.
"""
