"""Tests of a claimed epsilon for other projects' code."""
