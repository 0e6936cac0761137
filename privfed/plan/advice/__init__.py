"""Which draw and which noise leave the least noise on the model for an epsilon, and what they take.

Every number is that of the plan which a run with these keys would have.
"""
