"""The lease table: rows, conditional writes, and stores."""
