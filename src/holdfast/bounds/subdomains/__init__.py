"""Branch and bound: subdomains of a region, and receptive fields of inner neurons."""
