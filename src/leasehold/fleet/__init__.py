"""The engine of one fleet member: linear code that applies the plans of `core` through the ports."""
