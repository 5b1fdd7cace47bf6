"""`make read-your-writes`: a web shop whose writes go to Kafka and whose reads come from what a consumer made of them.

`shop` is the web app, and the six lines that matter are in its `_caught_up`; `view` is the consumer that keeps the
table up to date; `shoppers` write, read at once what they wrote, and count what was not there; `replica` is the same
shop on PostgreSQL, which writes to a primary and reads from a replica.
"""
