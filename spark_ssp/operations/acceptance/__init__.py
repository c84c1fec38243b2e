"""The proof that a Kinesis service answers as this project assumes."""
