"""What every room uses: parts and their registry, errors, random streams, vectors, processes."""
