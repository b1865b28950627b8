"""Tests of fleets with Java and Python members: the real KCL and ours on one stream and one lease table.

`make interop` builds the Java member (Maven, from Maven Central) and runs all of it; `.ci/run` runs the core of it.
"""
