"""`make read-your-writes`: a web shop that writes to Kafka and reads from the table that a consumer builds from it.

`shop` is the web app; its `_caught_up` contains the six essential lines. `view` is the consumer that maintains the
table. `shoppers` write an order, read it at once, and count the reads that do not find it. `replica` is the same shop
on PostgreSQL, which writes to a primary and reads from a replica.
"""
