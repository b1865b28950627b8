"""`leasehold pipeline`: the pipeline file, the Spark session, and running and watching the query."""
