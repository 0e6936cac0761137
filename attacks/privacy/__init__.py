"""Attacks on privacy: what was sent or released is asked who or what was trained on."""
