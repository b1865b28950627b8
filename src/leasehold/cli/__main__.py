"""`python -m leasehold.cli` is the `leasehold` command."""

from leasehold.cli import main

main()
