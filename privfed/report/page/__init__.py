"""What people read of a run or a grid in a browser: one page of HTML that asks for nothing else."""
