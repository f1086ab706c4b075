"""Augmentations of training, and the views of the papers."""
