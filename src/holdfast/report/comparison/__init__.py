"""Which results are comparable, and how encoders compare."""
