"""The election: the table of transitions, the loop that applies it, delivery, leader tasks, the hard fence."""
