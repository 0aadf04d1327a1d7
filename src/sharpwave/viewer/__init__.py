"""Viewer: a page on a store, a checkpoint or a run, served on this machine. It only reads."""
