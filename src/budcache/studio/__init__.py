"""The studio: look, find, compare and take away in a browser. It needs the extra `studio`."""
