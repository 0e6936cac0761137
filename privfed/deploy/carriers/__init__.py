"""Transports between a coordinator and its sites."""
