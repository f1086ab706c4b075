"""Certificates from noisy copies of images.

Files here hold algorithms; each file in ``evaluations`` is one measure."""
