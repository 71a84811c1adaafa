"""The nouns of a job and what is done with them on any platform: name it, launch it once, watch it, judge its end."""
