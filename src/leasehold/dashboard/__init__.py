"""A page that shows a running fleet: reads it from outside, serves views of it on loopback, and writes nothing."""
