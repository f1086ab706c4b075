"""Adversaries: how the first view of each image is perturbed in training."""
