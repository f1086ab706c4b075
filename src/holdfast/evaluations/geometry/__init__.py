"""Whether the space of clean codes is healthy or degenerate: spread, rank, hubs, classes, agreement of views."""
