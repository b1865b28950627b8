"""The native decoder against the decoder in Python: the same bytes must give the same result or the same error."""
