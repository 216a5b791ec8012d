"""What every other room may use, and which uses none of them: checks, clock, durations, descriptors."""
