"""What the dashboard shows, as plain values: from facts about a fleet and their history. Has no effects."""
