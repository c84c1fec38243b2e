"""Calls the Kinesis API: a protocol, its boto3 implementation, responses and errors."""
