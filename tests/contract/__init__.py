"""One suite a port, run against memory and the real servers alike, so that the fakes stay honest."""
