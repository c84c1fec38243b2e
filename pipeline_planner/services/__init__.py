"""The systems that hold streams and topics, as the planner uses them."""
