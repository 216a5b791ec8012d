"""Work that runs only on the leader: services, the schedule, and commands (``pgleaderlock exec``)."""
