"""CLEVER: distances estimated from sampled gradients."""
