"""Check who owns our tables: code attached to them runs with the rights of the session that uses them.

A trigger, a rule, a default, a policy or a constraint runs with the rights of the session that reads or writes the
table. A role with CREATE on the database can make the schema first, with a trigger on ``terms``, and wait for a
superuser. So before the first look into a table of ours only the catalogues are read, which runs no code of the table.
The table is refused unless

- it is an ordinary table, and it and its schema belong to a role that is trusted: the session's own user, a superuser,
  or the owner that the caller named (``schema_owner``); the owner of the database is not trusted as such;
- every function, operator and type that its triggers, defaults, constraints, policies, indexes and columns use belongs
  to such a role too; it has no rules, no parents and no children;
- no other role may add a trigger or a foreign key (the privileges TRIGGER and REFERENCES), and none has.

The last point is what makes a check enough. Between the check and the use, and as long as the session lives, only
a trusted role can replace the schema or the table, or attach code to it. If a trusted role gives the table to another
role meanwhile, or grants it TRIGGER, that is not noticed before the next session is opened.

The functions of PostgreSQL itself are not in ``pg_depend``, so they need no owner. What a trusted function does in
its body is its owner's business.
"""

from collections.abc import Sequence

from pgleaderlock._base.checks import visible
from pgleaderlock.errors import ConnectionError
from pgleaderlock.options import check_owner

STRANGERS_TABLE = "PGL02"
"""The SQLSTATE of the refusal to create tables in a schema, or next to tables, of a role that is not trusted."""

# Only checked names are filled in. The session is pinned, so that nothing here is looked up anywhere else.
# A login that has taken another role on can be brought back to its own rights by what runs: a superuser's stays one.
_PROBLEMS = """
(WITH RECURSIVE us AS (
    SELECT oid, rolname FROM pg_roles
     WHERE rolsuper OR rolname = '{owner}'
        OR rolname = current_user AND (current_user = session_user
           OR NOT (SELECT rolsuper FROM pg_roles WHERE rolname = session_user))
), trusted AS (
    SELECT oid FROM us
     UNION ALL
    SELECT r.oid FROM pg_roles AS r, pg_database AS d
     WHERE r.rolname = 'pg_database_owner' AND d.datname = current_database() AND d.datdba IN (SELECT oid FROM us)
), here AS (
    SELECT oid, nspowner FROM pg_namespace WHERE nspname = '{schema}'
), tables AS (
    SELECT c.oid, c.relname, c.relkind, c.relowner, c.relacl
      FROM pg_class AS c JOIN here ON c.relnamespace = here.oid WHERE c.relname IN ({tables})
), parts (classid, objid, what) AS (
    SELECT 'pg_class'::regclass::oid, oid, 'table ' || relname FROM tables
     UNION ALL SELECT 'pg_attrdef'::regclass, d.oid, 'a default of ' || relname
      FROM pg_attrdef AS d JOIN tables AS t ON d.adrelid = t.oid
     UNION ALL SELECT 'pg_constraint'::regclass, c.oid, 'constraint ' || conname || ' of ' || relname
      FROM pg_constraint AS c JOIN tables AS t ON c.conrelid = t.oid
     UNION ALL SELECT 'pg_trigger'::regclass, g.oid, 'trigger ' || tgname || ' of ' || relname
      FROM pg_trigger AS g JOIN tables AS t ON g.tgrelid = t.oid WHERE NOT tgisinternal
     UNION ALL SELECT 'pg_policy'::regclass, p.oid, 'policy ' || polname || ' of ' || relname
      FROM pg_policy AS p JOIN tables AS t ON p.polrelid = t.oid
     UNION ALL SELECT 'pg_class'::regclass, i.indexrelid, 'an index of ' || relname
      FROM pg_index AS i JOIN tables AS t ON i.indrelid = t.oid
), used (classid, objid, what) AS (
    SELECT d.refclassid, d.refobjid, p.what FROM parts AS p JOIN pg_depend AS d USING (classid, objid)
     WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass, 'pg_opclass'::regclass)
     UNION
    SELECT d.refclassid, d.refobjid, u.what FROM used AS u JOIN pg_depend AS d USING (classid, objid)
     WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass, 'pg_opclass'::regclass)
), owned (owner, what) AS (
    SELECT nspowner, 'schema {schema}' FROM here
     UNION ALL SELECT relowner, 'table ' || relname FROM tables
     UNION ALL SELECT o.proowner, what || ' (function ' || o.proname || ')'
      FROM used JOIN pg_proc AS o ON objid = o.oid WHERE classid = 'pg_proc'::regclass
     UNION ALL SELECT o.oprowner, what || ' (operator ' || o.oprname || ')'
      FROM used JOIN pg_operator AS o ON objid = o.oid WHERE classid = 'pg_operator'::regclass
     UNION ALL SELECT o.typowner, what || ' (type ' || o.typname || ')'
      FROM used JOIN pg_type AS o ON objid = o.oid WHERE classid = 'pg_type'::regclass
     UNION ALL SELECT o.opcowner, what || ' (operator class ' || o.opcname || ')'
      FROM used JOIN pg_opclass AS o ON objid = o.oid WHERE classid = 'pg_opclass'::regclass
     UNION ALL SELECT r.relowner, 'a foreign key to ' || t.relname || ' (table ' || r.relname || ')'
      FROM pg_constraint AS c JOIN tables AS t ON c.confrelid = t.oid JOIN pg_class AS r ON c.conrelid = r.oid
), granted (acl, what) AS (
    SELECT relacl, relname FROM tables
     UNION ALL
    SELECT a.attacl, relname || '.' || attname FROM pg_attribute AS a JOIN tables AS t ON a.attrelid = t.oid
), problems (problem) AS (
    SELECT what || ' belongs to role ' || coalesce(rolname, owner::text)
      FROM owned LEFT JOIN pg_roles AS r ON r.oid = owner WHERE owner NOT IN (SELECT oid FROM trusted)
     UNION
    SELECT relname || ' is not an ordinary table' FROM tables WHERE relkind <> 'r'
     UNION
    SELECT 'rule ' || rulename || ' of ' || relname FROM pg_rewrite JOIN tables AS t ON ev_class = t.oid
     WHERE relkind = 'r'
     UNION
    SELECT relname || ' inherits, or is inherited' FROM pg_inherits JOIN tables AS t ON t.oid IN (inhparent, inhrelid)
     UNION
    SELECT CASE WHEN x.grantee = 0 THEN 'every role' ELSE 'role ' || coalesce(rolname, x.grantee::text) END
           || ' has the privilege ' || x.privilege_type || ' on ' || what
      FROM granted, aclexplode(acl) AS x LEFT JOIN pg_roles AS r ON r.oid = x.grantee
     WHERE x.privilege_type IN ('TRIGGER', 'REFERENCES') AND x.grantee NOT IN (SELECT oid FROM trusted)
)
SELECT coalesce(array_agg(problem ORDER BY problem), '{{}}') FROM problems)
"""

_GUARD = """
DO $guard$ DECLARE
    problems text[] := {problems};
BEGIN
    IF problems <> '{{}}' THEN
        RAISE EXCEPTION USING ERRCODE = '{sqlstate}', MESSAGE = array_to_string(problems, '; '),
            HINT = 'Code that hangs there would run with the rights of ' || current_user || '.';
    END IF;
END $guard$;
"""


def problems_sql(schema: str, tables: Sequence[str], owner: str | None) -> str:
    """Return an expression: what is wrong with these tables, as an array of texts. ``schema`` was checked."""
    # No role has the empty name.
    return _PROBLEMS.format(schema=schema, tables=_listed(tables), owner=check_owner(owner) or "")


def guard_sql(schema: str, tables: Sequence[str], owner: str | None) -> str:
    """Return the statement that fails its transaction if there is something wrong with them."""
    return _GUARD.format(problems=problems_sql(schema, tables, owner), sqlstate=STRANGERS_TABLE)


def refusal(schema: str, problems: Sequence[str], user: str, where: str) -> ConnectionError:
    """Return the error that says what is wrong and what to do."""
    found = visible("; ".join(_summed_up(problems)))
    return ConnectionError(
        f"the tables in schema {schema} are refused, because code of another role could run there with the rights of "
        f"user {user} ({where}): {found}. If the role is to be trusted, name it with "
        "schema_owner (--schema-owner). If not: drop what is named here, REVOKE the privilege, or use another schema",
        answered=True,
    )


def _summed_up(problems: Sequence[str]) -> list[str]:
    """Name each owner once with all that it owns; what an owner may do besides says nothing more."""
    owned: dict[str, list[str]] = {}
    others = []
    for problem in problems:
        what, owns, owner = problem.partition(" belongs to role ")
        if owns:
            owned.setdefault(owner, []).append(what)
        else:
            others.append(problem)
    others = [each for each in others if not any(each.startswith(f"role {owner} has ") for owner in owned)]
    belong = {owner: f"{', '.join(what)} belong{'s' if len(what) == 1 else ''}" for owner, what in owned.items()}
    return [f"{what} to role {owner}" for owner, what in belong.items()] + others


def _listed(tables: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in tables)
