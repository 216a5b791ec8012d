"""What a session finds in the schema, and whether it can work with that. The rules are in :mod:`.schema`."""

from collections.abc import Sequence
from dataclasses import dataclass

from pgleaderlock._base.checks import visible
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._ownership import problems_sql
from pgleaderlock.postgres._schema_versions import LABEL, known_version, table_names, version_sql

__all__ = ["SchemaState", "look_sql", "may_upgrade_sql"]

# Only where all of it is ours: a session that tried in vain would write errors into the server's log.
_MAY_UPGRADE = """
(SELECT CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
             ELSE has_schema_privilege(n.oid, 'CREATE') END
        AND NOT EXISTS (SELECT FROM pg_class AS c WHERE c.relnamespace = n.oid AND c.relname IN ({tables})
                           AND NOT pg_has_role(c.relowner, 'USAGE'))
   FROM (SELECT) AS here LEFT JOIN pg_namespace AS n ON n.nspname = '{schema}')
"""

_LOOK = "SELECT {version}, {may_upgrade}, current_user::text, current_database()::text, {problems}"


def may_upgrade_sql(schema: str) -> str:
    """Return an expression: whether this user may create our tables, or upgrade them. ``schema`` was checked."""
    tables = ", ".join(f"'{name}'" for name in table_names())
    return _MAY_UPGRADE.format(schema=schema, tables=tables)


def look_sql(schema: str, tables: Sequence[str], owner: str | None, *, optional: Sequence[str] = ()) -> str:
    """Return a statement without parameters: the fields of a :class:`SchemaState`, and what is wrong with the tables.

    ``optional`` tables need not be there, but nothing may be wrong with them.
    """
    return _LOOK.format(
        version=version_sql(schema, tables),
        may_upgrade=may_upgrade_sql(schema),
        problems=problems_sql(schema, [*tables, *optional, LABEL], owner),
    )


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema as one session finds it."""

    versions: Sequence[int]
    may_upgrade: bool
    user: str
    database: str

    @property
    def version(self) -> int:
        """Its version; 0 where a table is missing that the session needs."""
        return self.versions[0]

    def check(self, schema: str, needs: int, where: str, *, grant: str = "--grant-to") -> None:
        """Raise ConnectionError if a session that needs this version cannot work with the schema."""
        known, lowest = known_version(), self.versions[1]
        named = f"schema {schema} in database {visible(self.database)}"
        apply = f"As its owner: pgleaderlock schema apply --schema {schema} {grant} {visible(self.user)}"
        if self.version > known and lowest > known:
            text = (
                f"{named} has version {self.version}, which only programs that know version {lowest} can use, and this "
                f"one knows version {known} ({where}). Update pgleaderlock here"
            )
        elif self.version == 0 < needs:
            text = f"{named} lacks tables, and user {visible(self.user)} may not create them ({where}). {apply}"
        elif self.version < needs:
            text = (
                f"{named} has version {self.version}, version {needs} is needed, and user {visible(self.user)} may not "
                f"upgrade it to version {known} ({where}). {apply}"
            )
        else:
            return
        raise ConnectionError(text, answered=True)
