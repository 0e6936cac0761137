"""The run file: its sections, keys and parts, read and typed."""
