"""A Kafka on this machine, for first steps, examples and tests: the real thing, one broker.

    from spark_ssp.testing.kafka import LocalKafka

    with LocalKafka() as kafka:
        kafka.create_topic("orders", partitions=4)
        spark.readStream.format("kafka-ssp").options(**kafka.options).option("subscribe", "orders")

`LocalKafkaCluster` runs several brokers, to stop, kill and freeze single ones.

It is fetched on first use, with the Java and the fetcher that Spark needs or brings.
"""

from spark_ssp.testing.kafka.broker import LocalKafka, LocalKafkaCluster

__all__ = ["LocalKafka", "LocalKafkaCluster"]
