"""What is asked of the tokens of an image one by one."""
