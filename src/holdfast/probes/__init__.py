"""Probes: classifiers on embeddings.

Files here hold algorithms; each file in ``evaluations`` is one measure with labels."""
