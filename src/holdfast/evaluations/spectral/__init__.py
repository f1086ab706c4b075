"""Spectral scores: how a map stretches the neighbourhoods of its inputs, from features alone."""
