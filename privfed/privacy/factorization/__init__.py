"""The lower-triangular Toeplitz matrices that correlate noise over rounds, solved for a run."""
