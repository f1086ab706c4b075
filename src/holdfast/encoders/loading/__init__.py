"""What sources of encoders share: references, inputs, factories and weights."""
