"""Measures of smoothed encoders, one file each."""
