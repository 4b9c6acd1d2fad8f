"""Showing policies and results to people."""
