"""Methods that bound linear functions of an embedding from below."""
