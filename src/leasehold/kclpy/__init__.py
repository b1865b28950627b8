"""A module with the names of `amazon_kclpy`, for record processors that were written for the KCL for Python.

`leasehold run --kclpy` runs such processors in this process, where `amazon_kclpy` is not needed. Import these names
instead of its names:

    from leasehold.kclpy import kcl
    from leasehold.kclpy.v3 import processor

Or leave the imports as they are, and ask for the alias (`leasehold.kclpy.alias`).
"""
