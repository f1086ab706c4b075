"""What sources of images share: files found, read, decoded and judged, and what is remembered of them."""
