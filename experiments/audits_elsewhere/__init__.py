"""Tests of a claimed epsilon for code that is not ours."""
