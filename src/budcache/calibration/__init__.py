"""Full runs kept as teachers, and how well any plan imitates them."""
