"""The lease coordinator: decides which leases to take, renew and release."""
