"""Attacks on representations: searches for the perturbation in a ball that an objective likes best."""
