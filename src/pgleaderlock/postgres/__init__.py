"""Elections on PostgreSQL: the two sessions of a candidate, their protocol, the tables, the doctor."""
