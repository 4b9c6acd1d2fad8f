"""Noise levels, solvers, the model as two verbs, and the one loop of equation 2: tensors, nothing of diffusers."""
