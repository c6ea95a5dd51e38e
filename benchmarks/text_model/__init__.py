"""A small text model that repeats what it has read, and the dialogues it is measured with."""
