"""Aggregation rules over client updates: tensors in, a tensor out. Imports no privfed.

A rule needs either only sums of what each client computes on its own row (`SumRule`), or every
client's row (`RowRule`). The sums can be computed by secure aggregation and noised.
"""
