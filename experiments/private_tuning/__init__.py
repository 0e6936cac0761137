"""What choosing among eight rates costs where the choice is charged."""
