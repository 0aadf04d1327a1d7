"""A cluster and its views show themselves, in a terminal and in a notebook."""

from __future__ import annotations

from pathlib import Path

import sharpwave as sw
from tests.serve.serving import fill, served
from tests.store.test_showing import Texts


def test_a_cluster_and_its_views_show_what_their_shards_said(tmp_path: Path) -> None:
    with served(2, tmp_path) as there:
        for number, store in enumerate(there.stores):
            fill(store, 1, 60, number)
        view = there.cluster.transitions(n_step=3, sampler=sw.Prioritized())
        assert repr(view) == f"<RemoteReplay 'transitions' of 2 shards: {len(view)} items when last asked, Prioritized>"
        assert {"n_step", "3", repr(view.sampler)} < set(Texts(view._repr_html_()).texts)
        assert repr(there.cluster) == "<Cluster of 2 shards, fields ['obs', 'action', 'noise']>"
        steps = [str(len(store)) for store in there.stores]
        assert {*steps} < set(Texts(there.cluster._repr_html_()).texts)
        there.servers[1].close()
        assert repr(there.cluster).startswith("<Cluster of 2 shards")
        assert steps[0] in Texts(there.cluster._repr_html_()).texts
