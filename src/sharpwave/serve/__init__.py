"""The store as a service: shards that any number of processes write to and sample from."""
