"""Label-free robustness measures (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076)."""
