"""Methods that bound linear functions of a code over a ball."""
