"""The way between this host and the server, and our own clock, as the doctor measures them from here.

These findings are about the host that asks: another candidate's network and clock may be worse.
"""

import math
import os
import socket
import statistics
import sys
import time
from collections.abc import Sequence

from pgleaderlock.postgres.doctor._findings import Finding, Verdict
from pgleaderlock.postgres.doctor._site import Site, shown_s
from pgleaderlock.postgres.lease import Lease

_ROUND_TRIPS = 20
_ROUND_TRIPS_BOUND_S = 2.0


async def check_round_trip(site: Site, name: str) -> Finding:
    """Compare how long an answer takes with how soon a renewal is due."""
    clock = time.perf_counter  # uvloop's own time is in whole milliseconds, in which a near server answers
    times_s: list[float] = []
    ends_at = clock() + _ROUND_TRIPS_BOUND_S
    while not times_s or (len(times_s) < _ROUND_TRIPS and clock() < ends_at):
        sent = clock()
        await site.ask("SELECT 1")
        times_s.append(clock() - sent)
    return _judge_round_trips(name, times_s, site.lease)


def _judge_round_trips(name: str, times_s: Sequence[float], lease: Lease) -> Finding:
    median_s = statistics.median(times_s)
    found = (
        f"median of {len(times_s)}: {shown_s(median_s)}, slowest: {shown_s(max(times_s))}; lease: {lease.lease_s:g} s"
    )
    if median_s <= lease.lease_s / 10:
        return Finding(name, Verdict.OK, found)
    advice = f"a renewal may come too late: use a lease of {math.ceil(10 * median_s)} s or more, or a nearer database"
    return Finding(name, Verdict.WARNING, found, advice)


async def check_keepalives(site: Site, name: str) -> Finding:
    """Ask the kernel about our own socket: it knows what came of the settings."""
    with socket.socket(fileno=os.dup(site.descriptor)) as ours:
        if ours.family not in {socket.AF_INET, socket.AF_INET6}:
            return Finding(name, Verdict.INFO, "not applicable: a socket on this host, no network in between")
        is_on = bool(ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        idle, interval, count, user_ms = (_tcp_option(ours, option) for option in _TCP_OPTIONS)
    server = await site.settings("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    numbers = ", ".join(f"{setting.name} {setting.shown}" for setting in server.values())
    if not is_on:
        advice = "take keepalives=0 out of the DSN: a dead network would be noticed only by a renewal"
        return Finding(name, Verdict.WARNING, f"off on our side; the server's side: {numbers}", advice)
    found = f"on: first after {idle} s, then every {interval} s, {count} times; tcp_user_timeout {user_ms} ms"
    return Finding(name, Verdict.INFO, f"{found}; the server's side: {numbers}")


_TCP_OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


def _tcp_option(ours: socket.socket, name: str) -> int | str:
    option = getattr(socket, name, None)  # not every system has all of them
    return "(system default)" if option is None else ours.getsockopt(socket.IPPROTO_TCP, option)


async def check_own_clock(_site: Site, name: str) -> Finding:
    """See whether a leader would notice that its host was suspended."""
    return _judge_own_clock(name, has_boottime=hasattr(time, "CLOCK_BOOTTIME"), platform=sys.platform)


def _judge_own_clock(name: str, *, has_boottime: bool, platform: str) -> Finding:
    if has_boottime or platform == "darwin":
        clock = "CLOCK_BOOTTIME" if has_boottime else "CLOCK_MONOTONIC"
        return Finding(name, Verdict.OK, f"{clock}: it counts while this host sleeps, so a leader wakes up knowing")
    found = f"there is no CLOCK_BOOTTIME on {platform}: after a suspend, a leader may act for the rest of its lease"
    return Finding(name, Verdict.WARNING, found, "do not run candidates on hosts that are suspended")
