"""What people see of the runs in a folder, and of two side by side."""
