"""What `privfed audit` does beside auditing runs."""
