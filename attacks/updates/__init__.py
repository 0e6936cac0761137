"""Attacks that replace the attackers' updates."""
