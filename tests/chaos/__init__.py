"""Chaos with real processes: workers and a Spark pipeline on real servers, hurt at random, and every record accounted
for. `make chaos` runs it; docs/reliability.md tells what it does.
"""
