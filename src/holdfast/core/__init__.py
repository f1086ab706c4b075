"""The words that everything else speaks."""
