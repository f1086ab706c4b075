"""The loop that carries a recipe out, and what it goes through: batches, views, health, checkpoints, interruptions."""
