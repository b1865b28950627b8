"""The environment of a simulated run: processes, network, services, and the truth about records and leases."""
