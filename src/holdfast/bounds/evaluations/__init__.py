"""Measures that rest on bounds, one file each."""
