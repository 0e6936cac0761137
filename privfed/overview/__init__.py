"""How do the runs in a folder differ?"""
