"""Privacy attacks on a run: the attacks of the package `attacks`, given what an adversary observes.

The adversary is a server, or a reader of what is released.
"""
