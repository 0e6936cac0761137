"""Attacks that alter the examples that Byzantine clients train on."""
