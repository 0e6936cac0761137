"""What carries bytes between a coordinator and its sites."""
