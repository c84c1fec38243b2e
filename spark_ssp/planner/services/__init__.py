"""The planner's interface to the services of streams and topics."""
