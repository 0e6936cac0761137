"""What does a configuration mean? What is refused, the noise, and what all rounds cost."""
