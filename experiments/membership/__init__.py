"""A study of membership inference, without privacy and over ε."""
