"""``ad.compile``: trace a function or a training step once, and replay it as one program."""
