"""Leases: who reads which shard, and how far, in a table that Kinesis Client Library workers share.

Records and their codec, the conditional writes, the store of the rows, and the worker's identity.
And the store of assignments of partitions to tasks, which queries share (`assignment_*`).
"""
