"""Parity: whether two encoders, or an encoder and stored codes, share one space; functions of their codes of images."""
