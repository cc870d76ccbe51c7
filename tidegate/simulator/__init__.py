"""Engine model, fake engine, and what is simulated with them."""
