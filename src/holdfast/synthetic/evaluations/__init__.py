"""Measures on synthetic classes, one file each."""
