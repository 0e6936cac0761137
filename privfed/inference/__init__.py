"""Attacks of `attacks/` on a run of ours: what updates and models tell about clients' data.

A simulation by whoever holds all clients' data: it shows what an adversary would learn. No epsilon
covers what it prints, and it writes into a folder of its own only.
"""
