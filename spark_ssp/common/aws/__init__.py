"""AWS clients, errors, retries and stores; shared by both sources."""
