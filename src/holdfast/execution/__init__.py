"""From a request to a table of stored results."""
