"""What is drawn: plots on the page, the same as files, and sheets of pictures."""
