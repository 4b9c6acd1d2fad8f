"""The studio: look, find, compare and take away in a browser. `budcache studio` opens it; it needs the extra `studio`."""
