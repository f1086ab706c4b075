"""Who moves the images that an encoder is trained on: one adversary a file."""
