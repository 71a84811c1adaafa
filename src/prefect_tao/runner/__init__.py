"""What runs beside the user's command inside a container, and the builder that embeds it."""
