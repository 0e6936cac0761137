"""What can be done with a trained model? Score, predict, export, personalise."""
