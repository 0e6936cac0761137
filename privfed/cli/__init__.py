"""The command line: the commands and their exit codes."""
