"""What sources of images share: finding, checking, remembering and decoding files."""
