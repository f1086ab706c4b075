"""What a reader is told first: the first screen, alerts and advice."""
