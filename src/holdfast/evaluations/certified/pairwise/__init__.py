"""An image against given others: the pairs, bounds of their margins and radii, and the attacks set against these."""
