"""Which client misbehaved, and how sure that is: for simulations, which know the truth."""
