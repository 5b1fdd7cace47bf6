"""What is measured beside whom: a function of a lab for each suite."""
