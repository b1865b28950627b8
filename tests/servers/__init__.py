"""The real servers that the tests talk to: how they are installed, started, shared by a test run, and ended.

Nothing here knows what is tested on them. A fixture in `tests/conftest.py` hands out a `Server` per name.
"""

from tests.servers.server import Server as Server
from tests.servers.server import aws_client as aws_client
