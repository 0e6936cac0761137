"""Server optimizers, which compute the next model from a released aggregate.

A server optimizer uses the negative aggregate as its pseudo-gradient. The optimizer reads released
values only, so under privacy it is post-processing and costs nothing.
"""
