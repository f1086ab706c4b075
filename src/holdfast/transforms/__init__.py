"""Transforms of images: corruptions, everyday edits, filters. One file each, found by name."""
