"""`python -m operations.commands`: the command `spark-ssp`."""

from __future__ import annotations

from operations.commands.main import main

if __name__ == "__main__":
    main()
