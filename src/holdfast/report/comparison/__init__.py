"""Comparable results, and comparisons of encoders."""
