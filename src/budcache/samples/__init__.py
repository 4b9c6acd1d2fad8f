"""From prompts and keyword arguments to samples: reading, seeding, splitting, batching."""
