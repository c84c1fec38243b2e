"""Plans batches from the leases that this query owns, and signals a graceful handoff."""
