"""What was released and what it cost: events, accountants, calibration and the ledger.

Useful alone, on plain numbers; imports no torch.
"""
