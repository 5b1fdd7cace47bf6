"""The peers of the comparison. Each is a process with the protocol of bench/measure/worker.py."""
