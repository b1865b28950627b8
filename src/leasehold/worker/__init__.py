"""The plain runtime: one Python process as a member of a fleet, with handlers in plain or async Python."""
