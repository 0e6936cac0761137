"""Evaluation by clients after training, results of evaluations, and detection of divergence."""
