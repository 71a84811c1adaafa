"""A launch, from the parameters that a person gives to the session with its target."""
