"""Which URLs name a PostgreSQL database, as the libraries around PostgreSQL write them."""

__all__ = ["DRIVERS", "SCHEMES", "is_postgres", "is_postgres_scheme", "why_no_driver"]

SCHEMES = ("postgresql", "postgres", "pgsql", "psql", "postgis")
"""libpq knows the first two, dj-database-url and django-environ the others."""
DRIVERS = ("asyncpg", "psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "pg8000")
"""The drivers that SQLAlchemy adds to a scheme: ``postgresql+asyncpg://``."""

_ROWS = "lease"  # postgresql+lease:// is another store: rows in PostgreSQL


def is_postgres_scheme(scheme: str) -> bool:
    """Return whether URLs with this scheme name a PostgreSQL database, with or without a driver."""
    name, separator, driver = scheme.partition("+")
    return name in SCHEMES and (not separator or driver in DRIVERS)


def why_no_driver(scheme: str) -> str | None:
    """Return why a scheme of PostgreSQL is refused if its driver is not known here; None for any other scheme."""
    name, separator, driver = scheme.lower().partition("+")
    if name not in SCHEMES or not separator or driver in {*DRIVERS, _ROWS}:
        return None
    known = ", ".join(f"+{each}" for each in DRIVERS)
    return f"the driver {driver!r} is not known here: write {name}:// alone, which is enough, or with {known}"


def is_postgres(url: str) -> bool:
    """Return whether this URL names a PostgreSQL database."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and is_postgres_scheme(scheme)
