"""Server optimizers, one file each: they turn a released aggregate into a new model.

A server optimizer takes -aggregate as its pseudo-gradient. It reads released values only, so under
privacy it is post-processing and costs nothing.
"""
