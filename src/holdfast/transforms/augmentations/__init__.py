"""Random changes of training images, one file each: crops, flips, colours, blur, and the views of the papers."""
