"""One member of a fleet: linear code that executes the plans of `core` through the ports."""
