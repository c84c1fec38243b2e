"""Which task reads what: identifiers and the mapping of shards to slots. Pure; no I/O, no clock."""
