"""How gradients flow: plan a run, pull through one op at a time, in order."""
