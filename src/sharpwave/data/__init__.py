"""Data sets of other projects: one file a format, all read as episodes and written from them."""
