"""Which measures without labels predict how well embeddings serve downstream uses: ``python -m studies``."""
