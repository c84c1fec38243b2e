"""The Kinesis sink: rows of a query become records of streams."""
