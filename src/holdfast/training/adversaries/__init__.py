"""Adversaries: what moves the first view of each image in training."""
