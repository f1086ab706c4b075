"""Making encoders, and making encoders robust: objectives, adversaries, recipes and the loop that runs them."""
