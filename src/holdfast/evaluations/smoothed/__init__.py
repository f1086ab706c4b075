"""What holds for the smoothed encoder: certificates by sampling, for encoders of any kind and size."""
