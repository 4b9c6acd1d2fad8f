"""Diffusion pipelines at a number of model calls that you fix in advance."""

__version__ = "0.1.0"
