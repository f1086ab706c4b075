"""Studies: what is trained, measured and concluded with the library itself, each by one command."""
