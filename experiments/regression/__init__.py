"""Coverage of logistic regressions from one noised table, by simulation."""
