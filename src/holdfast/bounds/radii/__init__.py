"""Radii up to which specifications are proved: bracketed by quick bounds, bisected by dear ones."""
