"""The noise that one epsilon needs: secret, resampled slots, and better correlated noise."""
