"""What a reader is told first: scorecard, alerts and advice."""
