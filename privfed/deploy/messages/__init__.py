"""What a coordinator and its sites say to each other."""
