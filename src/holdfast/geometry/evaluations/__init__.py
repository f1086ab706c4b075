"""Measures of clean embeddings and patches, one file each."""
