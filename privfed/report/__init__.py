"""The output for users: tables and sentences on plans, runs, audits and attacks."""
