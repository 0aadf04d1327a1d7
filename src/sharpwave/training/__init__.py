"""Training from a recipe: the loop, what is shown and kept of a run, and playing what was learned."""
