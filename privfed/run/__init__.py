"""Prepares, executes, resumes, checks and rehearses a run."""
