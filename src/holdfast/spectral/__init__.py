"""Graphs on samples and their spectra, on arrays alone.

Files here hold algorithms; each file in ``evaluations`` is one measure."""
