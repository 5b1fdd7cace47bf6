"""`make stream-demo`: waits for a Spark job over Kafka, then the purgatory itself as a Spark stream.

`__main__` runs the demonstration; `parse_job` is the job and the parts of its latency; `same_answers` feeds a stream
and a daemon with the same records; `connector` downloads Spark's connector for Kafka.
"""
