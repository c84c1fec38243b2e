"""The batch read (`spark.read`): the part of the streams between two positions, planned once."""
