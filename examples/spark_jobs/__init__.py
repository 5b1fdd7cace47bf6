"""Uses of a Spark job that other programs can wait for: `nightly_batch` starts when its input is complete, and
`own_write` is a web handler that reads its caller's writes.
"""
