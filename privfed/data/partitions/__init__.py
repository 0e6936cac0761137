"""Who owns each example, and how clients' examples are shifted."""
