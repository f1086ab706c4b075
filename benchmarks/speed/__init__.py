"""Speed as ratios to a floor in the same process: ``python -m benchmarks.speed.NAME``. Never run as tests."""
