"""Chaos tests: workers and a Spark pipeline on real servers, with random faults. Every record is accounted for.

`make chaos` runs them; docs/reliability.md describes them.
"""
