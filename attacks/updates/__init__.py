"""Attacks in which Byzantine clients send other updates than those they trained."""
