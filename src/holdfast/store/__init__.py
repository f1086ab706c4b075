"""What is kept on disk: results, shards, fits, and where they came from."""
