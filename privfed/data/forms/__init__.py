"""Converts contents of files to examples of a declared form: arrays, texts and labels."""
