"""Calls Kafka brokers: protocols, admin client, client configuration, retries and errors."""
