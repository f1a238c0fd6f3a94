"""How gradients flow: plan a backward, then pull the gradient through one op at a time, in order."""
