"""What becomes of encoders whose training images were changed."""
