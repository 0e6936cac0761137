"""What does a client's row of measures hold, and what follows from the noised sum of rows?"""
