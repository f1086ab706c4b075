"""What attacks maximise."""
