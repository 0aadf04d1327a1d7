"""Training from a recipe: the loop, a run's folder and logs, and playing by its policies."""
