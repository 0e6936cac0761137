"""The command line: the commands, and their exits."""
