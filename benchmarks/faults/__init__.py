"""Faults of clusters, for ``cluster_faults.py`` and ``cluster_soak.py``: homes of shards, faults, and
the account that checks acknowledged steps."""
