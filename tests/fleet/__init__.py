"""Fleets of real worker processes under faults: what was produced, what was handled, and what each fault may cost."""
