"""What a reader is told first: answers to plain questions, counts, warnings and what to do next, in words."""
