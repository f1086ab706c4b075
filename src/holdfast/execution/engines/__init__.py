"""Engines: where shards of work are computed."""
