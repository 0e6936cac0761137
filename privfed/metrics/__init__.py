"""Measures of federated evaluation: a client's bounded row, and estimates from the noised sum."""
