"""Parity: whether two encoders, or an encoder and stored codes, share one space; functions of the codes of the same images."""
