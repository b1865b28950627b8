"""Which leases are ours: strategies with and without a leader, leader election, refreshes, nudges, worker reports."""
