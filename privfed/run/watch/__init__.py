"""Observers of a run in progress: files, TensorBoard, and user code."""
