"""Generates the reference pages from the definitions in the code: settings, options, events, metrics, findings, errors
and commands. `make reference` writes them, and tests/docs/test_reference.py fails if a page is out of date.
"""
