"""The worker: a Python process that is a member of a fleet and calls handlers in plain or async Python."""
