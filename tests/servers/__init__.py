"""The real servers that the tests use: how they are installed, started, shared by a test run, and ended.

A fixture in `tests/conftest.py` returns a `Server` per name.
"""

from tests.servers.server import Server as Server
from tests.servers.server import aws_client as aws_client
