"""How does it run on real machines? What a site answers, and what is asked of it."""
