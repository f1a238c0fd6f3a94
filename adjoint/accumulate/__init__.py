"""Gradient accumulation: micro-batches whose gradients add up to those of one batch."""
