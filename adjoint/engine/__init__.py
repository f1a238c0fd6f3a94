"""The backward engine: plan a backward, then propagate the gradient through one op at a time, in order."""
