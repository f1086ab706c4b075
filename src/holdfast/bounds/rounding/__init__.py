"""What rounding can do to a network and to the arithmetic of its bounds, as one more term of every layer."""
