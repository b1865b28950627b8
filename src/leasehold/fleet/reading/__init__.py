"""Reads a shard by polling, in chunks of user records, within the byte budget of the process."""
