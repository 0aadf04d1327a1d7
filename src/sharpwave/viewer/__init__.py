"""Viewer: a page that shows a store, a checkpoint or a run, served on this machine, read only."""
