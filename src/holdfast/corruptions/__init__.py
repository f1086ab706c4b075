"""Everyday edits and common corruptions.

Files here hold algorithms; each file in ``evaluations`` is one measure."""
