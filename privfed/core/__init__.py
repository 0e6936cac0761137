"""Shared code of all packages: parts, registry, errors, random streams, vectors and processes."""
