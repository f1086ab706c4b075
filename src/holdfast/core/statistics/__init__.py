"""From one value per sample to numbers with intervals."""
