"""The one lock that the doctor was asked about, and the table of its terms: how they are now, which is no judgement.

Only candidates that do not agree are warned about. Nothing else shows them to each other.
"""

from collections.abc import Sequence

from pgleaderlock.models import Holder
from pgleaderlock.options import DEFAULT_SCHEMA
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._activity import Candidate, candidates, election_candidates
from pgleaderlock.postgres._ownership import problems_sql
from pgleaderlock.postgres._schema_state import may_upgrade_sql
from pgleaderlock.postgres._schema_versions import LABEL, known_version, version_sql
from pgleaderlock.postgres._standby import REMEDY, described, standby_waits
from pgleaderlock.postgres.doctor._findings import Finding, Note, Verdict, together
from pgleaderlock.postgres.doctor._site import Site
from pgleaderlock.postgres.lease import Place, witness_key

# From the catalogues, because to_regclass() is an error for who may not look into the schema.
_TERM_TABLE = """
SELECT {versions},
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
                AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE'), false),
       {may_upgrade}, {problems}
  FROM (SELECT) AS here
  LEFT JOIN pg_namespace AS n ON n.nspname = '{schema}'
  LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'terms'
"""


async def check_term_table(site: Site, name: str) -> Finding:
    """See whether term_table=True would work, in the schema that is asked about."""
    schema, owner = site.lease.schema, site.lease.schema_owner
    statement = _TERM_TABLE.format(
        schema=schema,
        versions=version_sql(schema, ["terms"]),
        may_upgrade=may_upgrade_sql(schema),
        problems=problems_sql(schema, ["terms", LABEL], owner),
    )
    (version, lowest), is_usable, can_create, problems = await site.ask(statement)
    known = known_version()
    table = f"{schema}.terms"
    if problems:
        found = f"{table} will be refused, code of another role could run there: {'; '.join(problems)}"
        advice = "with term_table=True, name a role that you trust as schema_owner (here --schema-owner)"
        return Finding(name, Verdict.WARNING, found, advice)
    if version > known and lowest > known:
        found = f"schema {schema} has version {version}, for programs that know version {lowest}: here it is {known}"
        return Finding(name, Verdict.WARNING, found, "with term_table=True, update pgleaderlock here")
    apply = f"pgleaderlock schema apply{'' if schema == DEFAULT_SCHEMA else f' --schema {schema}'}"
    advice = f"needed only with term_table=True: as its owner, `{apply} --grant-to {site.user}`"
    if version and is_usable:
        upgrade = f"as its owner, `{apply}` upgrades the schema to version {known}" if version < known else ""
        return Finding(name, Verdict.INFO, f"{table} is there (version {version}), and this user may use it", upgrade)
    if version:
        return Finding(name, Verdict.INFO, f"{table} is there, but this user may not use it", advice)
    if can_create:
        return Finding(name, Verdict.INFO, f"{table} is missing; this user may create it")
    return Finding(name, Verdict.INFO, f"{table} is missing, and this user may not create it", advice)


async def check_lock(site: Site, name: str) -> Finding:
    """Report the holder and the followers, and whether their settings agree."""
    waits = await standby_waits(site.fetch_all, site.key)
    stuck = [Note(Verdict.PROBLEM, described(waits), REMEDY)] if waits else []
    if site.key is None:
        return together(name, [Note(Verdict.INFO, "not looked at: none was named"), *stuck])
    found = await election_candidates(site.fetch_all, site.key)
    witnesses = await candidates(site.fetch_all, witness_key(site.key))
    shown = f"{site.key.described} is {_holder(found)}; {_followers(found)}; its witness is {_holder(witnesses)}"
    notes = [Note(Verdict.INFO, shown), *stuck]
    agreements = {_dsn.agreement_of(candidate.holder.name) for candidate in found} - {None}
    if len(agreements) > 1:
        differ = " and ".join(sorted(map(repr, agreements)))
        advice = "give all candidates the same lease_s, witness and takeover: a promise is kept between equals"
        notes.append(Note(Verdict.WARNING, f"candidates do not agree: their names end in {differ}", advice))
    return together(name, notes)


def _followers(found: Sequence[Candidate]) -> str:
    """Return who leads next, as far as the locks show it. Quiet followers do not show, nor does a warm session."""
    places = {candidate.place: candidate.holder for candidate in found if candidate.place}
    others = sum(not candidate.granted and not candidate.place for candidate in found)
    named = [
        f"its {place} is {_named(places[place])}" if place in places else f"it has no {place}"
        for place in (Place.HEIR.value, Place.NEXT_HEIR.value)
    ]
    return "; ".join([*named, f"{others} more queued"])


def _holder(found: Sequence[Candidate]) -> str:
    holders = [candidate.holder for candidate in found if candidate.granted]
    return f"held by {' and '.join(map(_named, holders))}" if holders else "free"


def _named(holder: Holder) -> str:
    return f"pid {holder.pid} ({holder.name}, user {holder.detail})"
