"""Reads a running fleet from outside, of Leasehold or of the Java KCL, and writes nothing."""
