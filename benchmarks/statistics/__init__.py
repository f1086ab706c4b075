"""How often intervals cover and encoders of equal truth are told apart: ``python -m benchmarks.statistics.NAME``."""
