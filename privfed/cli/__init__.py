"""What may be typed? The commands, and how they end."""
