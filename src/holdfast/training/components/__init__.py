"""What several objectives are built of."""
