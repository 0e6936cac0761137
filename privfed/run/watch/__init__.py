"""Who else is told of a run while it goes on: files, TensorBoard, code of one's own."""
