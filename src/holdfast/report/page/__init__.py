"""The HTML page of a report, and its templates."""
