"""Storage and clipping of gradients, and the functions that run the backward."""
