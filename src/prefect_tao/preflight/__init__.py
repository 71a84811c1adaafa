"""From an ask to a launch: resolving it, and the checks before it, as plain functions that leave nothing behind."""
