"""What is known of a partition, and the rules by which its marks move."""
