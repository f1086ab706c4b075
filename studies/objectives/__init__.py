"""Every training objective at small scale, and beside lightly's."""
