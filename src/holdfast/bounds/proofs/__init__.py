"""What is needed to check a certificate again without search, and the slow program that does."""
