"""How far one machine goes: people on disk, long models, and where the time and memory go."""
