"""Engines, which compute shards."""
