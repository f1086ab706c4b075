"""How anything is measured: populations, observations, evaluations."""
