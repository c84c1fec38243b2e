"""A service with HTTP/2, other services with SubscribeToShard, and streams that are pushed."""
