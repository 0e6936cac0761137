"""Where clients score the model: what their rows tell, one release more, and an early end."""
