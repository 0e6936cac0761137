"""Privacy attacks on a run: attacks of `attacks/` on the view of a server or of a reader."""
