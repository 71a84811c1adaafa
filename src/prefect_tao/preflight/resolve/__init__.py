"""From what a person asks for to what will run. Pure: nothing is read and nothing is reached."""
