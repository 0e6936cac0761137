"""Use of a trained model: score, predict, export, personalise."""
