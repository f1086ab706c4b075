"""Probes: classifiers on a frozen encoder's codes, learned once from the labelled bank. One file each, found by name."""
