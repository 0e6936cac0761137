"""Attacks that alter the examples that attackers train on."""
