"""Other ways to ask for an election: a manager over three verbs, and a service that starts schedulers."""
