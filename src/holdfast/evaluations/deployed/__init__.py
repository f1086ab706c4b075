"""What those ask who run an encoder every day: whether its inputs have moved, and where to put the threshold."""
