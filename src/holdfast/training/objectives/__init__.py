"""What an encoder is trained for."""
