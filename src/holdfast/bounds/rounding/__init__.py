"""Bounds on floating-point rounding."""
