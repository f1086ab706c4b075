"""Measures of probes, one file each."""
