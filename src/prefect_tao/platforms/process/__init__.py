"""Jobs as detached process groups on this machine: the default platform, with nothing to set up."""
