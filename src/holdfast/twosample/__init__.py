"""Whether two sets of codes come from one distribution: tests whose rate of false alarms holds at every sample size."""
