"""The peers that are measured beside this house, each a process that speaks the protocol of bench/measure/worker.py."""
