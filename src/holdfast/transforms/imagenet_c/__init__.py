"""The common corruptions of ImageNet-C (Hendrycks and Dietterich 2019)."""
