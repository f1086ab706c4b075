"""What floating-point rounding may change of a bound."""
