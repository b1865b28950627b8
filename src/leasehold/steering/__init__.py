"""Steers a running fleet from outside, of Leasehold or of the Java KCL: releases and resets leases, and cleans up."""
