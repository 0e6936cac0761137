"""Aggregation rules over client updates: tensors in, a tensor out. Imports no privfed.

A rule either needs only sums of what each client computes on its own row (`SumRule`: it can be
carried by secure aggregation and noised), or it needs to see the rows (`RowRule`).
"""
