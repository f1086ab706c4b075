"""Values that all of the library uses."""
