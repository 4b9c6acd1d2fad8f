"""What budcache promises, tried by force: many times, at random moments, with a seed. See `docs/reliability.md`."""
