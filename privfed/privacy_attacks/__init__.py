"""What does a run give away? Attacks of `attacks/` on what a server or a reader sees."""
