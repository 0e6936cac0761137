"""How much noise one epsilon needs: secret, fresh slots, and noise correlated better."""
