"""Holdfast inside the programs of others: their callbacks, each a few lines over ``monitor``."""
