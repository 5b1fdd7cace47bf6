"""What to do with a Spark job that can be waited for: `nightly_batch` begins when its input is complete, `own_write`
is a web handler that reads what its caller has written.
"""
