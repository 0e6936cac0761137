"""A run that several processes play: who they are, and what each that is not the first does."""
