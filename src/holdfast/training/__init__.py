"""Making and hardening encoders."""
