"""The tests. Start reading at test_spec_table.py: it is the specification, claim by claim."""
