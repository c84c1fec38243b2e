"""Decodes batches of messages directly from librdkafka's memory."""
