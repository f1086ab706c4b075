"""Measures under attack, one file each."""
