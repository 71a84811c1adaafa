"""The Brev platform. Its driver is still to come."""
