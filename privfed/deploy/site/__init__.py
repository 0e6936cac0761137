"""The agent of a site: its policy checks, charges and answers."""
