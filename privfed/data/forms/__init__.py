"""What stands in files as examples of a declared form: arrays, texts and labels."""
