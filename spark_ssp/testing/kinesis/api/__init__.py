"""The operations of the Kinesis API."""
