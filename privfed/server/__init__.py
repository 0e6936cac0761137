"""Server optimizers, which compute the next model from a released aggregate.

A server optimizer takes -aggregate as its pseudo-gradient. It reads released values only, so under
privacy it is post-processing and costs nothing.
"""
