"""The terminal side of the command: output, connection options, clock, types of values."""
