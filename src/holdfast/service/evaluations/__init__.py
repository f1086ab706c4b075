"""Measures of encoders in service, one file each."""
