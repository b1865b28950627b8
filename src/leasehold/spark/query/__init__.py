"""A streaming query: planning and lease service on the driver, reading and pinning in the tasks."""
