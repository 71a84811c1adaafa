"""Looks at the world before a launch. Each returns findings and changes nothing."""
