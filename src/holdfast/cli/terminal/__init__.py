"""What a terminal shows and how: colours, one result, standard output that may be closed, flags that may not be empty."""
