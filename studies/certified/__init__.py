"""Certified robustness of contrastive encoders, as RVCL measures it."""
