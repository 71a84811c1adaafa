"""The parameters of a launch: declared once, and what is derived from that."""
