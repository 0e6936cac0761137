"""Coverage of survival estimates from one noised table, by simulation."""
