"""The encoder as a graph of operations that can be bounded."""
