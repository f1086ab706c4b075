"""Where the codes of a ball may lie: how far they move, and past which hyperplanes."""
