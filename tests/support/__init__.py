"""What several test modules share. A test module imports from here, never from another test module."""
