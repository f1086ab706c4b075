"""Gaussian classes with known robust classifiers.

Files here hold algorithms; ``evaluations`` holds the measure."""
