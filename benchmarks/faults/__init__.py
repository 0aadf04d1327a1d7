"""Faults of clusters, for ``cluster_faults.py`` and ``cluster_soak.py``: who runs the shards, what harms them, and what
is checked afterwards."""
