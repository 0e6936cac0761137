"""Privacy attacks: reconstruction of inputs and labels, and membership inference."""
