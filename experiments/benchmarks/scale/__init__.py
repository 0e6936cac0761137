"""Limits of one machine: clients on disk, long models, and the bottlenecks in time and memory."""
