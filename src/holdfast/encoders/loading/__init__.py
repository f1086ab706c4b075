"""What sources of encoders share: references and their settings, inputs, factories, weights."""
