"""A lock in a file, for the processes of one host."""
