"""A deterministic simulator: the shipped worker in virtual time, with faults drawn from a seed and checked promises."""
