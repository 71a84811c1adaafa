"""One way over ssh for every driver: commands, files and byte streams on another machine, over one shared login."""
