"""Aggregation rules over client updates: functions of tensors. This package does not import
privfed.

A client's row is its update in a round. A rule needs either only sums of terms that each client
computes from its own row (`SumRule`), or every client's row (`RowRule`). Only such sums can be
computed by secure aggregation.
"""
