"""Decisions of the commands that steer a running fleet: which leases to capture, and where to set them."""
