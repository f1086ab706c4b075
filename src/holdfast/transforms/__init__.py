"""Images to images: edits, corruptions and augmentations."""
