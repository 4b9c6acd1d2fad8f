"""The hub: ladders as repositories with a card, read back by name, and found for a model."""
