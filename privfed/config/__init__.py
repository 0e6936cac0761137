"""The run file: its sections, keys and parts, parsed and validated."""
