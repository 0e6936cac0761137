"""What a site allows."""
