"""What probes make of codes, with labels: accuracy on clean images and under attack."""
