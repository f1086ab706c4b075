"""Objectives: what an attack climbs. Each file holds one; ``Scene`` is what it may look at."""
