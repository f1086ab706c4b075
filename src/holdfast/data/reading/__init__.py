"""What sources of images share: finding, checking, caching and decoding files."""
