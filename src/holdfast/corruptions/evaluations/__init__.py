"""Measures under edits and corruptions, one file each."""
