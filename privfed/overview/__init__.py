"""What lies in a folder of runs, and how do two of them differ?"""
