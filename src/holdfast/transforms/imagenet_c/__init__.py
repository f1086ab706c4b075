"""The 15 + 4 common corruptions of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019, https://arxiv.org/abs/1903.12261)."""
