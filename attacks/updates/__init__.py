"""Attacks that replace what attackers send."""
