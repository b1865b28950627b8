"""Record processors of version 3."""
