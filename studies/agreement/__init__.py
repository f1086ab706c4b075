"""Which measures without labels foretell how well codes serve later uses: ``python -m studies``."""
