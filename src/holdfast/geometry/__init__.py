"""The space of clean embeddings, and patches in it.

Files here hold algorithms; each file in ``evaluations`` is one measure."""
