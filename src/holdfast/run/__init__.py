"""How requests are carried out: planned, computed in shards, concluded."""
