"""Transforms of functions: derivatives in both modes, Jacobians and Hessians, batching."""
