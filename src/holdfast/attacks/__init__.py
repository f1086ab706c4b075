"""Attacks: searches in a ball for perturbations that change an embedding most.

Files here hold algorithms; each file in ``evaluations`` is one measure under attack."""
