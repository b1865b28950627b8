"""One suite per port, run on memory and on real servers, so that the in-memory versions behave like the real ones."""
