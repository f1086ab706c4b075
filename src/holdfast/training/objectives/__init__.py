"""What encoders are trained for, one objective a file: its equation, its settings, its learner."""
