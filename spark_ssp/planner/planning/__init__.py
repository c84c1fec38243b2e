"""Plans stages and partition counts."""
