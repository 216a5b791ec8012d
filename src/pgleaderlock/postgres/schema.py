"""The statements that make our tables, and those that upgrade older ones: for migrations of your own, too.

``schema.sql`` is the only list of changes. It has a section for each version of the schema, in order; each makes
the next version of the one before, and each may be repeated. All of them make the whole schema, those after version V
upgrade a schema of version V. A change of a table is a new section at the end, never a change of an older one.

**Where the version is.** In the comment on the table ``schema_version``, which has neither columns nor rows. A comment
is read from the catalogues: that needs no grant and runs no code of the table. Only the owner of the table can write
it, whom a session must trust as the owner of every other table (:mod:`._ownership`), and pg_dump keeps it. Tables
without it have version 1: 0.1.0 made them.

**Which versions work together.** A program knows the versions of its ``schema.sql``. Each kind of session (the term
row, lease rows, the registry, the ledger) needs a lowest version, and a schema records which version a program must
know at least to work with it: an addition leaves that as it is.

- A schema that is older than the session needs is upgraded, where the user of the session may: it owns our tables
  there, and may create in the schema. Elsewhere the session is refused, and the error says what its owner must run.
- A schema that is older than the program, but not than the session needs, is used as it is. An election must not wait
  for an index that it does not need: ``pgleaderlock schema apply`` upgrades it. So does a registry that may, if the
  table of asks is missing.
- A schema that is newer than the program is used if it records that a program with this version can work with it.
  Otherwise the session is refused until pgleaderlock is updated.
- No statement of ours makes a version lower: an upgrade fails if the schema is newer than its statements.

Programs of 0.1.0 do not look at the version. A section that they could not work with has to make their statements
fail, as another name of a table does.
"""

from pgleaderlock.postgres._schema_versions import known_version, schema_sql

__all__ = ["known_version", "schema_sql"]
