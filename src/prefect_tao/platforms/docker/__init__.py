"""Docker engines, on this machine or on another one: one container per attempt, found by its label."""
