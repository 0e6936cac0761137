"""The plan of a configuration: what is refused, the noise, and the cost of all rounds."""
