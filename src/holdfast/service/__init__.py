"""Encoders in service: drift, thresholds and parity.

Files here hold algorithms; each file in ``evaluations`` is one measure."""
