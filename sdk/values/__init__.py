"""Frozen values that cross a contract. One file per idea; everything public is re-exported by `tokloom.sdk`."""
