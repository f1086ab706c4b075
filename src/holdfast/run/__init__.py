"""Execution of requests: plan, compute in shards, conclude."""
