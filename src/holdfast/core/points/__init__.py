"""Arrays of embeddings as points: neighbours, exact counts and moments of whole populations."""
