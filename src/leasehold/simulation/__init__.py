"""A seeded world around the shipped engine: virtual time, honest trouble, and one checker a promise."""
