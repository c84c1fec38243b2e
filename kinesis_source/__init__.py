"""The Spark source for Amazon Kinesis: the driver plans the batches, tasks read them."""
