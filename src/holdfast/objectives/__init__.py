"""Objectives: what an attack climbs. Each file holds one; ``AttackContext`` is what it may look at."""
