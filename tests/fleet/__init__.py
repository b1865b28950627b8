"""Fleets of real worker processes under faults."""
