"""What is measured, and against which peers: a function of a lab for each suite."""
