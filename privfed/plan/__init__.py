"""The plan of a configuration: its refusals, its noise, and the cost of all rounds."""
