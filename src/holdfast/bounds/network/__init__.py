"""The network that is bounded: its program, its graph, and checks that both agree with the module."""
