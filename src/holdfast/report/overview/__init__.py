"""What a reader sees first: the first screen, alerts and advice."""
