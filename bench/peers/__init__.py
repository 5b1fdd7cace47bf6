"""The peers that we are measured against, each a process with the protocol of bench/measure/worker.py."""
