"""The lease agent: a process beside the driver that runs the coordinator."""
