"""What does a grid look like? Pictures of its tables, checked before it runs and drawn after."""
