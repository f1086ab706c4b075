"""Embeddings that were computed elsewhere, one row per image."""
