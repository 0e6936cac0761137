"""Who masks with whom in a masked sum, and holds shares of whose secrets?"""
