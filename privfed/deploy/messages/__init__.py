"""The messages between a coordinator and its sites."""
