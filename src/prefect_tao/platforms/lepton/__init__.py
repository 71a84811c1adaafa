"""The Lepton platform. Its driver is still to come."""
