"""Lease maintenance: creates leases for new shards, deletes those of finished shards, upgrades a fleet."""
