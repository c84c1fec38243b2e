"""Jobs to copy. Each has a rehearsal on local services in `examples/rehearsals/`."""
