"""Learning algorithms: a batch goes in, temporal-difference errors come out. They know nothing of the store."""
