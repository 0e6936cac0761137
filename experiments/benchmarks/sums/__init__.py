"""What secure sums take, beside less of the same."""
