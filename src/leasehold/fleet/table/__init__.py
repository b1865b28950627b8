"""Reads and writes the lease table and the coordinator rows of a fleet."""
