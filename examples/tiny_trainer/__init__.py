"""A real but small training that behaves like a TAO network: same spec shape, status file, checkpoints and exit habits.

It needs nothing but Python itself (and PyYAML for YAML specs), so that a whole pipeline can be tried on any machine.
"""
