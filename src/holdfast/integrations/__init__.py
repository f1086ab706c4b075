"""Callbacks for other training programs."""
