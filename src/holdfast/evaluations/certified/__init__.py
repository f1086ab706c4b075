"""What no change of an image can do to its representation, proved, with attacks beside every proof."""
