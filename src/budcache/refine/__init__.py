"""Making more of a mask: reuse fitted in closed form, and the paper's schedule alignment."""
