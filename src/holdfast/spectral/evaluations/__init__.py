"""Spectral measures and CLEVER, one file each."""
