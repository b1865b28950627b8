"""A model of Spark's micro-batch engine, which runs the shipped source and the shipped archive sink."""
