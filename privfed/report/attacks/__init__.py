"""What people see of attacks on models and updates: tables, JSON and pictures."""
