"""What guesses and samples say against a claimed epsilon."""
