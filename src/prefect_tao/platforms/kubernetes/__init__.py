"""The Kubernetes platform. Its driver is still to come."""
