"""The pytest plugin: the fixture `local_kinesis`, a Kinesis server on loopback for the tests of a program."""
