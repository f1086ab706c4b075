"""What everyday edits and common corruptions do to codes, to retrieval and to what probes read from them."""
