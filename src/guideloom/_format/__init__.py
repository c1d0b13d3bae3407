"""Records to bytes and back; opens nothing."""
