"""Networks to train, one file for each family: settings that build an untrained module for inputs of any size that fits."""
