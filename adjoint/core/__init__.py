"""What a value is: tensors, nodes, op records and the namespaces that evaluate them."""
