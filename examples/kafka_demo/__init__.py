"""`make kafka-demo`: a broker, a producer, a slow consumer group, and a daemon that follows them because of one option.

`__main__` runs the demonstration; `traffic` contains the producer and the consumers.
"""
