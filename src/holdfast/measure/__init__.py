"""What a measurement is, what identifies it, and where it is kept."""
