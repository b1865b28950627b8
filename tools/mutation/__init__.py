"""Mutation tests: change the code in small ways, and report the changes that no quick test notices (`make mutants`)."""
