"""What a measurement is, how it is identified and where it is stored."""
