"""Where gradients rest: the tensors' own slots, and stores."""
