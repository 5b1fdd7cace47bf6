"""`make stream-demo`: a Spark job over Kafka that somebody waits for, then the purgatory itself as a Spark stream.

`__main__` is the story; `parse_job` is the job and what its time goes to; `same_answers` feeds a stream and a daemon
with the same records; `connector` fetches Spark's connector for Kafka.
"""
