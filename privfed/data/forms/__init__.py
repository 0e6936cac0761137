"""Contents of files as examples of a declared form: arrays, texts and labels."""
