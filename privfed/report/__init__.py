"""What do people see? Tables and sentences of plans, runs, audits and attacks."""
