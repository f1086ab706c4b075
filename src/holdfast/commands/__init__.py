"""The commands as functions: one file per command, which Python and the command line share."""
