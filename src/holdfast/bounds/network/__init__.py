"""The network that is bounded: its program, its graph, and whether both agree with the module."""
