"""Branch and bound on small parts of a network."""
