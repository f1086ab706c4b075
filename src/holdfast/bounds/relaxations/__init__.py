"""Linear bounds of single operations."""
