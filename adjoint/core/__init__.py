"""Tensors, nodes, op records, and the namespaces that evaluate ops."""
