"""Storage as the launcher sees it: which schemes there are, what lies at a location, and copies of it here."""
