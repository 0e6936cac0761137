"""Aggregation rules over client updates: tensors in, a tensor out. Imports no privfed.

A rule needs either only sums of terms that each client computes from its own row (`SumRule`), or
every client's row (`RowRule`). Such sums can be computed by secure aggregation, and noise can be
added to them.
"""
