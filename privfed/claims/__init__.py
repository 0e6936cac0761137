"""Claims: a run's guarantee as one document that other parties can verify."""
