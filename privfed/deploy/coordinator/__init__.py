"""The coordinator: the server's side of a federation."""
