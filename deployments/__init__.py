"""What turns flows into deployments."""
