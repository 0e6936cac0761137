"""Server optimizers, one file each: released aggregates in, a new model out.

A server optimizer takes -aggregate as its pseudo-gradient. It sees released values only, so under
privacy it is post-processing and costs nothing.
"""
