"""Pre-aggregation: steps that replace rows by mixtures (weighted sums) of them before a rule is
applied.
"""
