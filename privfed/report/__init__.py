"""Output for users: tables, figures and pages about plans, runs, audits and attacks."""
