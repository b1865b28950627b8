"""Record processors of version 2."""
