"""Everything that can be measured, one folder per family."""
