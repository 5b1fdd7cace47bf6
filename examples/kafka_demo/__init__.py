"""`make kafka-demo`: a broker, a producer, a slow consumer group, and a daemon that one option makes follow them.

`__main__` is the story; `traffic` writes and reads.
"""
