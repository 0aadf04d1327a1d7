"""Learning algorithms: they take batches and return temporal-difference errors, and are independent of the store."""
