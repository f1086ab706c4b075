"""Proofs of certificates: how they are made, stored and checked."""
