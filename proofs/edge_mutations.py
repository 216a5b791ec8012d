"""Mechanisms at the edges (strangers, HTTP, asks, poolers, commands, files), each taken out of a copy of the source.

The simulation knows nothing of these edges, so each mutation names the tests that must fail without the mechanism. It
is a change of the text, in a copy of ``src/`` that comes first on the path: so it is missing in the processes too that
a test starts, and nothing in the product knows of it. ``tests/testing/test_edge_mutations.py`` runs them.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).parents[1] / "src"
_STEPS = "tests/postgres/test_succession_steps.py"
_REHEARSAL = "tests/postgres/test_rehearsal.py"
_POD_LABEL = "tests/ops/test_pod_label.py"
_PLANTED = "tests/postgres/test_strangers.py::test_no_planted_function_operator_view_or_type_is_called"


@dataclass(frozen=True)
class EdgeMutation:
    """A mechanism, the text that takes it out, and the tests of which one must fail then."""

    name: str
    path: str
    """Under ``src/pgleaderlock``."""
    text: str
    instead: str
    tests: tuple[str, ...]

    def changed_text(self) -> str:
        """Return the text of the file without the mechanism."""
        text = (_SOURCE / "pgleaderlock" / self.path).read_text(encoding="utf-8")
        found = text.count(self.text)
        assert found == 1, f"{self.path} has {self.text!r} {found} times: this mutation mutates nothing, or too much"
        return text.replace(self.text, self.instead)

    def write_source(self, folder: Path) -> Path:
        """Copy the source without the mechanism, and return what is to come first on the path."""
        copy = folder / "src"
        shutil.copytree(_SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "pgleaderlock" / self.path).write_text(self.changed_text(), encoding="utf-8")
        return copy


EDGE_MUTATIONS = (
    # No function of a stranger runs with our rights.
    EdgeMutation(
        "the search_path is pinned", "postgres/_search_path.py",
        "'search_path', 'pg_catalog, pg_temp', {is_local}", "'search_path', current_setting('search_path'), {is_local}",
        (f"{_PLANTED}[public first-a_lock_and_its_status]",),
    ),
    EdgeMutation(
        "the tables of a stranger are refused", "postgres/_ownership.py",
        "    return _PROBLEMS.format(schema=schema, tables=_listed(tables), owner=check_owner(owner) or \"\")",
        "    return \"'{}'::text[]\"",
        ("tests/postgres/test_ownership.py::test_a_foreign_key_from_a_stranger_s_table_is_refused",),
    ),
    # No database user can arrange who leads next.
    EdgeMutation(
        "a nomination counts if the holder of the lock sent it", "postgres/nomination.py",
        "for pid, to in heard if pid == holder_pid]", "for pid, to in heard if pid]",
        ("tests/postgres/test_nomination.py::test_a_forged_nomination_is_checked_and_ignored",),
    ),
    # No HTTP client can depose a leader.
    EdgeMutation(
        "HTTP connections stay below the limit of descriptors", "ops/http/_limits.py",
        "min(most_connections, available // _SHARE)", "most_connections",
        ("tests/ops/test_http.py::test_a_server_leaves_most_descriptors_to_the_rest_of_the_process",),
    ),
    EdgeMutation(
        "a connection without a request is closed in time", "ops/http/_waiting_room.py",
        "                if visitor.since > ended:\n                    break\n", "                break\n",
        ("tests/ops/test_http.py::test_bytes_that_come_one_by_one_extend_no_deadline",),
    ),
    EdgeMutation(
        "what clients do is logged once a minute", "ops/_rare_log.py",
        "            self._next_at[event] = now + EVERY_S\n", "",
        ("tests/ops/test_http.py::test_a_log_line_about_clients_comes_once_a_minute_with_a_count",),
    ),
    EdgeMutation(
        "an operator's request is answered before those of anonymous clients", "ops/http/_waiting_room.py",
        "        if visit is Visit.OPERATOR:\n", "        if visit is None:\n",
        ("tests/ops/test_http.py::test_without_processor_time_an_anonymous_request_waits_and_an_operators_does_not",),
    ),
    EdgeMutation(
        "anonymous clients leave connections free for operators", "ops/http/_limits.py",
        "        most_anonymous=most * 3 // 4,\n        most_streams=most // 2,\n",
        "        most_anonymous=most,\n        most_streams=most,\n",
        ("tests/ops/test_http.py::test_anonymous_streams_have_fewer_places_than_there_are_and_an_operator_has_one",),
    ),
    EdgeMutation(
        "HTTP has a thread and an event loop of its own", "ops/http/_server.py",
        """\
        self._loop = asyncio.new_event_loop()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"pgleaderlock {name}", daemon=True)

    def start(self) -> None:
        \"""Begin to serve. The address listens already: no client that connects from now on is refused.\"""
        self._thread.start()
""",
        """\
        self._loop = asyncio.get_running_loop()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread()

    def start(self) -> None:
        self._thread.start()
        self._task = self._loop.create_task(self._serve())
        self._task.add_done_callback(lambda _: self._ended.set_result(None))
""",
        ("tests/ops/test_http.py::test_a_handler_that_blocks_does_not_keep_an_election_from_renewing",),
    ),
    # The label of the leader's pod is removed by a newer leader, never by an outdated one.
    EdgeMutation(
        "a leader compares tokens before it removes the label of another pod", "ops/pod_label/_pods.py",
        "and seen.token < term.token", "and seen.token != term.token",
        (f"{_POD_LABEL}::test_an_outdated_leader_never_removes_a_newer_label[greater]",),
    ),
    EdgeMutation(
        "a leader compares tokens before it replaces the label of its own pod", "ops/pod_label/_pods.py",
        "and seen.token > token", "and seen.token < token",
        (f"{_POD_LABEL}::test_the_newer_label_of_another_process_in_the_same_pod_is_neither_replaced_nor_removed",),
    ),
    EdgeMutation(
        "a patch of a pod is refused if the pod was changed since it was read", "ops/pod_label/_pods.py",
        '"resourceVersion": seen.version, ', "",
        (f"{_POD_LABEL}::test_a_label_that_became_newer_after_it_was_listed_is_not_removed[True]",),
    ),
    EdgeMutation(
        "a pod is labelled only while leadership is valid", "ops/pod_label/_labeller.py",
        "or self._term is not term or not self.leads():", "or self._term is not term:",
        (f"{_POD_LABEL}::test_a_leader_that_stood_still_does_not_label_its_pod_before_it_learns_of_its_loss",),
    ),
    # Only a role with the right to ask can make a leader step down.
    EdgeMutation(
        "one ask per lease is obeyed", "ops/registry/_asks.py",
        "ask.since_obeyed_s is None or ask.since_obeyed_s >= lease_s", "True",
        ("tests/ops/test_asks.py::test_verdicts",),
    ),
    EdgeMutation(
        "an ask of a stranger is refused", "ops/registry/_asks.py",
        "refusal = ask.objection or _refusal(", "refusal = _refusal(",
        ("tests/ops/test_asks.py::test_without_a_table_own_role_and_members_are_obeyed_and_strangers_are_not",),
    ),
    # A pooler that shares sessions is refused.
    EdgeMutation(
        "a second client shows that a pooler lends our session", "postgres/_pooler.py",
        "if (lent := await _pid_of(rival, _BEGIN)) == pid:", "if (lent := await _pid_of(rival, _BEGIN)) == 0:",
        ("tests/postgres/test_pooler.py::test_a_process_that_is_lent_to_a_second_client_is_not_ours",),
    ),
    # exec.
    EdgeMutation(
        "the guardian wakes a stopped command to ask it to end", "work/exec/guardian.py",
        "        self._signal_group(signal.SIGCONT)  # a stopped process handles no other signal\n", "",
        ("tests/work/test_guardian.py::test_stopped_command_is_continued_to_be_asked_and_its_stop_was_reported",),
    ),
    EdgeMutation(
        "a wrapper whose terminal is gone ends", "work/exec/supervisor.py",
        "is_hung_up = number is signal.SIGHUP and self._terminal.is_gone", "is_hung_up = False",
        ("tests/work/test_exec_terminal.py::test_a_command_that_ignores_the_hang_up_is_killed_in_time",),
    ),
    EdgeMutation(
        "a guardian may miss one renewal", "work/exec/guardian_client.py",
        "_MOST_UNANSWERED = 2", "_MOST_UNANSWERED = 0",
        ("tests/work/test_supervise.py::test_a_guardian_that_misses_one_renewal_goes_on",),
    ),
    # Back soon after an outage.
    EdgeMutation(
        "retries have a ceiling while the store is away", "retry.py",
        "return _AWAY_MOST_S if lease_s is None else min(_AWAY_MOST_S, max(_AWAY_LEAST_S, lease_s * _AWAY_SHARE))",
        "return math.inf",
        ("tests/postgres/test_outages.py::test_a_leader_is_back_soon_after_the_network",),
    ),
    # What was claimed survives a crash of the server, and no block begins in a term that is over.
    EdgeMutation(
        "the claim of a slot is flushed", "work/schedule/once.py",
        "SELECT {FLUSHED}, set_config", "SELECT set_config",
        ("tests/work/test_once.py::test_a_claim_is_flushed_whatever_the_user_s_default",),
    ),
    EdgeMutation(
        "a blocking block looks again before it begins", "sync/_leading.py",
        "while run.term.is_ending:", "while False:",
        ("tests/postgres/test_leading.py::test_a_block_in_a_thread_does_not_begin_in_a_term_that_ended_on_the_way",),
    ),
    EdgeMutation(
        "a look at a socket never waits", "postgres/_hangup.py",
        "        self._view.settimeout(0)\n", "",
        ("tests/engine/test_last_words.py::test_a_look_never_waits_whatever_the_default_timeout_of_sockets_is",),
    ),
    # Locks in files.
    EdgeMutation(
        "a leader renews in place on a full disk", "stores/file/_folder.py",
        "        if record is None or not record.is_open:\n            return None\n", "        return None\n",
        ("tests/stores/test_file_full_disk.py::test_a_leader_renews_and_releases_where_no_file_can_grow",),
    ),
    EdgeMutation(
        "a far number counts only with its term", "stores/file/_folder.py",
        "number <= COUNTED_BY_NAME or self._is_far_term(number)", "True",
        ("tests/stores/test_stray_numbers.py::test_a_copy_of_a_term_is_no_term",),
    ),
    EdgeMutation(
        "an epoch on NFS is looked at again before the next", "stores/nfs/backend.py",
        "self._is_unchanged(replacing) and term.take", "term.take",
        ("tests/stores/test_nfs_store.py::test_an_epoch_that_was_renewed_since_it_was_read_is_not_replaced",),
    ),
    # A lock is not pickled.
    EdgeMutation(
        "a lock refuses to be pickled", "_base/checks.py",
        "    raise TypeError(\n        f\"{type(self).__name__} cannot be pickled or copied",
        "    raise ValueError(\n        f\"{type(self).__name__} cannot be pickled or copied",
        ("tests/engine/test_pickling.py::test_it_is_refused_with_what_to_do_instead",),
    ),
    # A group leads only what is held.
    EdgeMutation(
        "a group frees each lock once", "postgres/group.py",
        "        leaving = dict(self._leaving)  # kept until done: a second release of a key waits for this one\n",
        "        leaving, self._leaving = self._leaving, {}\n",
        ("tests/postgres/test_group.py::test_of_a_release_that_is_asked_for_twice_both_hear_that_the_lock_is_free",),
    ),
    # The next leader is ready before it is needed, and no place is a precondition for the lock.
    EdgeMutation(
        "the next heir tries for the lock at the end of each wait slice", "postgres/succession.py",
        "NEXT_HEIR:\n            return await self._ask(self._statements(Place.HEIR).slice(slice_s, lock)",
        "NEXT_HEIR:\n            return await self._ask(self._statements(Place.HEIR).slice(slice_s)",
        (f"{_STEPS}::test_a_follower_becomes_next_heir_then_heir_and_opens_its_second_session_while_it_is_queued",),
    ),
    EdgeMutation(
        "an heir waits a moment for the witness lock of a leader that was killed", "postgres/pair.py",
        "_EARLY_WAIT_S = 0.02", "_EARLY_WAIT_S = 0.0",
        (f"{_STEPS}::test_an_heir_waits_for_the_witness_lock_when_the_grant_is_announced_before_it_is_answered",),
    ),
    EdgeMutation(
        "an heir's wait slice rehearses what follows the grant", "postgres/_sql.py",
        "rehearse=_REHEARSE_DRAW if draws else \"\"", "rehearse=\"\"",
        (f"{_STEPS}::test_a_follower_becomes_next_heir_then_heir_and_opens_its_second_session_while_it_is_queued",),
    ),
    EdgeMutation(
        "a rehearsal of the draw assigns no transaction id", "postgres/_sql.py",
        "_FLUSH} WHERE false;", "_FLUSH};",
        (f"{_REHEARSAL}::test_a_wait_slice_that_is_not_granted_the_lock_assigns_no_transaction_id",),
    ),
    EdgeMutation(
        "a rehearsal takes no lock", "postgres/_sql.py",
        "pg_advisory_lock(0) WHERE false;", "pg_advisory_lock(0);",
        (f"{_REHEARSAL}::test_a_rehearsal_takes_no_lock",),
    ),
    EdgeMutation(
        "a warm session rehearses the wait for the witness lock", "postgres/warm_session.py",
        "ready.session.fetch(_sql.REHEARSAL,", "ready.session.fetch(_sql.PING,",
        (f"{_STEPS}::test_a_warm_session_is_pinged_and_one_that_ended_is_replaced",),
    ),
    EdgeMutation(
        "of the sessions of a killed process the first ends first", "postgres/_hangup.py",
        "_DOWNWARDS = range(240, 40, -1)", "_DOWNWARDS = range(41, 241)",
        ("tests/engine/test_last_words.py::test_the_copy_of_an_earlier_socket_has_a_higher_number",),
    ),
    EdgeMutation(
        "a warm session that is silent is not waited for", "postgres/pair.py",
        "await asyncio.wait({asked}, timeout=LATE_S)", "await asyncio.wait({asked})",
        (f"{_STEPS}::test_a_warm_session_that_is_silent_is_replaced_by_a_fresh_one_after_a_tenth_of_a_second",),
    ),
    EdgeMutation(
        "a warm session that ended on our side only is terminated", "postgres/pair.py",
        "        if not self._given_up:\n", "        if True:\n",
        (f"{_STEPS}::test_a_warm_session_that_ended_on_our_side_only_keeps_no_witness_lock",),
    ),
    EdgeMutation(
        "a warm session that may hold the witness lock is terminated", "postgres/warm_session.py",
        "            if self._ready is not None and not self._ready.session.closed:\n", "            if False:\n",
        (f"{_STEPS}::test_a_warm_session_with_an_early_try_that_is_given_up_is_terminated_by_the_next_session",),
    ),
    EdgeMutation(
        "a warm session that ended is replaced", "postgres/warm_session.py",
        "            await asyncio.sleep(pause_s)\n", "            await asyncio.sleep(3600.0)\n",
        (f"{_STEPS}::test_a_warm_session_is_pinged_and_one_that_ended_is_replaced",),
    ),
    EdgeMutation(
        "notifications do not make a quiet follower try without a pause", "postgres/succession.py",
        "max(self._tried_at + _HEED_EVERY_S, self._clock())", "self._clock()",
        (f"{_STEPS}::test_a_quiet_follower_tries_at_most_three_or_four_times_a_lease_and_when_it_is_notified",),
    ),
    EdgeMutation(
        "a successor begins before the sessions of a release are closed", "postgres/pair.py",
        "                await asyncio.sleep(_CLOSE_AFTER_S)\n", "                pass\n",
        (f"{_STEPS}::test_the_sessions_of_a_release_are_closed_a_moment_after_it",),
    ),
    EdgeMutation(
        "the lock session is asked for the last time only once", "postgres/advisory.py",
        "        elif has_answered and granted.token is not None:\n", "        elif False:\n",
        (f"{_STEPS}::test_the_lock_session_is_asked_last_as_soon_as_the_witness_lock_is_held_and_only_once",),
    ),
    EdgeMutation(
        "the last question counts only for the witness lock that was held then", "postgres/pair.py",
        "        return ready is not None and ready is self._witness\n", "        return ready is not None\n",
        (f"{_STEPS}::test_the_lock_session_is_asked_again_if_the_witness_session_was_replaced_after_its_answer",),
    ),
    EdgeMutation(
        "a close that is cancelled closes both sessions", "postgres/advisory.py",
        "        finally:  # also when this is cancelled: a session that may hold a lock is never left open\n",
        "        except ZeroDivisionError:\n            raise\n        else:\n",
        (f"{_STEPS}::test_a_close_that_is_cancelled_leaves_no_session_open",),
    ),
    EdgeMutation(
        "a group hears of the end of its lock session while it takes witness locks back", "postgres/pair.py",
        "            await self._unless_ended(self._replace_witness(others))\n",
        "            await self._replace_witness(others)\n",
        ("tests/postgres/test_group.py::test_a_group_whose_lock_session_ends_while_it_takes_witness_locks_back_says_so_at_once",),
    ),
    EdgeMutation(
        "a leading() block releases a term that was recovered", "engine/leading.py",
        "self.entered is not None and self._participation.term() is self._entered_in",
        "self.entered is not None and not self.is_lost",
        ("tests/engine/test_leading.py::test_a_block_that_is_cut_off_by_a_recovery_gives_leadership_up",),
    ),
    EdgeMutation(
        "a grant that is dropped ends its last question", "postgres/succession.py",
        "            await end_call(self.last_answer)\n", "            pass\n",
        (f"{_STEPS}::test_the_last_question_ends_with_the_grant_that_is_dropped",),
    ),
    EdgeMutation(
        "the lock session of a grant is not used by a further wait", "postgres/advisory.py",
        "        if self._granted is not None:  # by an earlier wait: the lock session is in use\n",
        "        if False:\n",
        (f"{_STEPS}::test_a_second_wait_does_not_use_the_lock_session_of_a_grant",),
    ),
    EdgeMutation(
        "a quiet period that ends at once is shown to have ended", "postgres/advisory.py",
        "        await self._pair.show_wait(is_over=True)\n", "",
        (f"{_STEPS}::test_a_candidate_shows_that_it_no_longer_waits_also_when_the_quiet_period_ends_while_it_says_that_it_does",),
    ),
    # A block that leads gives leadership up, and its own alone.
    EdgeMutation(
        "a leading() block does not release a later term", "engine/leading.py",
        "self.entered is not None and self._participation.term() is self._entered_in", "self.entered is not None",
        ("tests/engine/test_leading.py::test_a_block_that_outlives_its_loss_does_not_give_up_a_later_term",),
    ),
    EdgeMutation(
        "a leading() block that is cancelled while it is left releases", "engine/leading.py",
        "        finally:  # also when the caller is cancelled: this process would lead on, and no code would run\n",
        "        except ZeroDivisionError:\n            raise\n        else:\n",
        ("tests/engine/test_leading.py::test_a_block_that_is_cancelled_while_it_waits_for_the_cause_of_its_loss_gives_leadership_up",),
    ),
    EdgeMutation(
        "a blocking leading() starts what it shuts down", "sync/_blocking.py",
        "self._engine._new_block(None, functools.partial(self._start, home))", "self._engine._new_block(None)",
        ("tests/sync/test_sync_leading.py::test_a_block_that_is_entered_while_the_election_stops_ends_what_it_starts",),
    ),
    EdgeMutation(
        "a blocking leading() that is interrupted while it is left is left", "sync/_leading.py",
        "        except BaseException:  # Ctrl-C may come before the event loop's thread has begun\n"
        "            self._caller.ask(self._abandon)\n",
        "        except BaseException:\n",
        ("tests/sync/test_sync_leading.py::test_an_interrupt_before_the_event_loop_has_begun_to_leave_gives_leadership_up",),
    ),
    # The end of a session shows before its locks are free.
    EdgeMutation(
        "the announcement of an end is seen at the socket", "postgres/_hangup.py",
        "(bool(seen[0][1] & _END) or announce_end(self._peek() or b\"\"))", "bool(seen[0][1] & _END)",
        ("tests/engine/test_last_words.py::test_the_end_shows_when_it_was_announced_and_the_socket_is_still_open",),
    ),
    EdgeMutation(
        "the announcement of an end is seen during a call too", "postgres/connection.py",
        "close_on_cancel(connection, self._cut_short, None if survives_errors else self._look)",
        "close_on_cancel(connection, self._cut_short)",
        ("tests/engine/test_last_words.py::test_an_end_that_is_announced_during_a_call_shows_before_the_close",),
    ),
    EdgeMutation(
        "the announcement of an end is seen while it is being read", "postgres/connection.py",
        "        self._is_ending = self._is_ending or self._probe.has_ended\n", "",
        ("tests/engine/test_last_words.py::test_an_end_that_is_announced_between_calls_shows_while_it_is_read",),
    ),
    EdgeMutation(
        "the heir's place is left also when the last answer was asked for twice", "postgres/succession.py",
        "self._leaves_heir = self._leaves_heir or place is Place.HEIR", "self._leaves_heir = place is Place.HEIR",
        (f"{_STEPS}::test_the_lock_session_is_asked_again_if_the_witness_session_was_replaced_after_its_answer",),
    ),
    EdgeMutation(
        "a session that is opened into silence is not waited for", "postgres/warm_session.py",
        "await asyncio.wait({opening}, timeout=LATE_S)", "await asyncio.wait({opening})",
        (f"{_STEPS}::test_a_session_that_is_opened_into_silence_is_waited_for_a_tenth_of_a_second",),
    ),
    EdgeMutation(
        "a lock session hears no notifications", "postgres/pair.py",
        "            await prepare(ready.session)\n",
        "            await prepare(ready.session)\n"
        "            if self._channel is not None:\n                await ready.session.listen(self._channel)\n",
        ("tests/postgres/test_group.py::test_unread_notifications_do_not_hide_the_end_of_the_lock_session",),
    ),
)  # fmt: skip
