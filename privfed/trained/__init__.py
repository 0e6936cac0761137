"""Uses a trained model: scores, predicts, exports and personalises it."""
