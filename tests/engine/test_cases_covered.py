"""Which test shows which case that was worked out by hand; a new case must find its place here."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]

COVERED = {
    "engine/test_timing.py::test_a_wait_ends_where_the_case_says": """
        wait-1h-across-gap-ny wait-24h-vs-1d-hours wait-24h-vs-1d-day wait-1d-lands-in-gap-ny
        wait-1d-into-overlap-berlin wait-1d-lord-howe-gap wait-1d-apia-dateline
        wait-1bd-apia-dateline wait-1d-sao-paulo-midnight-gap wait-1bd-casablanca-ramadan-start
        wait-1d-tehran-no-dst-2026 wait-5bd-berlin-over-autumn wait-1bd-from-saturday-ny
        wait-1bd-auckland-utc-friday wait-1bd-tehran-thursday wait-3bd-over-new-year
        wait-zone-contact-missing wait-zone-sender-setting""",
    "engine/test_timing.py::test_a_wait_for_a_time_ends_where_the_case_says": """
        until-2-on-gap-day-ny until-1-overlap-ny-first until-9-exactly-9 until-9-negative-offset
        tzdb-vancouver-2026""",
    "engine/test_timing.py::test_a_send_goes_out_when_the_case_says": """
        win-close-exact win-open-exact win-friday-late-to-monday win-day-advance-resets-time
        win-overnight-overlap-inside win-overnight-friday-into-saturday win-overnight-midday
        win-recheck-closed-meanwhile win-recheck-overdue-by-hours win-contact-moved-west
        win-sender-zone sms-before-eight sms-nine-pm-exact sms-sender-window-recipient-west
        sms-windows-never-meet sms-campaign-window-too-early sms-zone-ambiguous-phone
        jitter-inside jitter-past-close-friday tz-bad-keys""",
    "engine/test_timing.py::test_the_hosts_zone_files_do_not_matter": """
        tzdb-same-answer-on-stale-host""",
    "engine/test_timing.py::test_jitter_never_comes_early_and_never_outside_the_window": """
        jitter-bounds-property""",
    "engine/test_timing.py::test_sweeps_run_when_the_case_says": """
        sweep-tehran sweep-gap-hour sweep-overlap-hour""",
    "engine/test_timing.py::test_an_outage_costs_one_sweep": "sweep-missed-while-down",
    "engine/test_timing.py::test_a_birthday_fires_on_the_days_of_the_case": """
        bday-leap-common-year bday-new-year-wrap bday-mar1-common bday-datetime-value""",
    "engine/test_timing.py::test_today_is_the_day_of_the_accounts_zone": "bday-day-is-the-accounts",
    "engine/test_timing.py::test_an_unreadable_date_is_none": "bday-bad-values",
    "engine/test_timing.py::test_what_is_no_instant_is_refused": "timer-naive-input-refused",
    "engine/test_looks.py::test_the_first_look_enrols_nobody_and_records_everybody": """
        sweep-first-scan""",
    "engine/test_looks.py::test_who_stays_inside_is_never_enrolled_again": """
        reentry-no-restart-after-natural-exit""",
    "engine/test_looks.py::test_leaving_and_coming_back_counts_as_entering": """
        reentry-after-segment-flap""",
    "engine/test_looks.py::test_sweeps_run_at_their_hours_of_the_accounts_day": """
        sweep-tehran sweep-gap-hour sweep-overlap-hour""",
    "engine/test_looks.py::test_a_birthday_comes_once_a_year": """
        bday-leap-common-year bday-new-year-wrap bday-mar1-common bday-datetime-value""",
    "engine/test_looks.py::test_unreadable_dates_enrol_nobody_and_are_counted": "bday-bad-values",
    "engine/test_instance.py::test_who_may_enter_again": """
        reentry-day-tehran-before-midnight reentry-day-tehran-midnight
        reentry-day-measured-from-entry cooldown-second-before cooldown-from-last-update
        cooldown-zero reentry-both-fields""",
    "engine/test_instance.py::"
    "test_a_cohort_locks_to_its_hour_with_a_cooldown_and_not_with_a_day": "cooldown-cohort-lock",
    "engine/test_instance.py::test_nobody_inside_is_entered_again_under_any_rule": """
        reentry-while-waiting""",
    "engine/test_instance.py::"
    "test_who_left_a_segment_and_came_back_enters_where_the_rule_allows": """
        reentry-after-segment-flap""",
    "engine/test_nodes.py::test_a_second_run_does_everything_again_under_names_of_its_own": """
        reentry-second-run-does-everything""",
    "engine/test_walk.py::test_a_signal_takes_its_branch": """
        ev-reply-beats-exact-channel ev-call-beats-reply ev-exit-on-beats-wake""",
    "engine/test_walk.py::test_nothing_is_buffered_for_a_wait_that_has_not_begun": "ev-before-wait",
    "engine/test_walk.py::test_the_entering_event_is_not_the_answer_inside": """
        ev-trigger-event-is-not-its-own-answer""",
    "engine/test_walk.py::test_the_next_event_after_the_wait_began_wakes_it": """
        ev-right-after-wait-starts""",
    "engine/test_walk.py::test_at_the_time_out_itself_the_event_wins_and_after_it_never": """
        ev-same-instant-as-timeout ev-just-after-timeout-before-poll""",
    "engine/test_walk.py::test_a_closed_wait_never_opens_again": "ev-after-timeout-handled",
    "engine/test_walk.py::test_only_one_of_two_branches_is_ever_taken": "ev-both-paths-never",
    "engine/test_walk.py::test_arrival_counts_not_the_events_own_time": """
        ev-old-timestamp-arrives-now ev-future-timestamp""",
    "engine/test_walk.py::test_an_empty_on_timeout_goes_on_down_next": "ev-on-timeout-empty",
    "engine/test_walk.py::test_a_time_out_that_passed_during_the_pause_is_taken_on_resume_once": """
        ev-paused-past-timeout""",
    "engine/test_walk.py::"
    "test_the_event_that_caused_the_step_travels_and_none_after_a_time_out": """
        ev-properties-of-the-waking-event""",
    "engine/test_nodes.py::test_a_time_out_behind_a_held_send_counts_from_the_send": """
        ev-clock-starts-at-the-send""",
    "engine/test_replay.py::test_an_event_wait_closes_once": "ev-duplicate-late",
    "engine/test_walk.py::test_the_exit_rule_beats_the_longest_stay": """
        exit-criteria-beats-duration""",
    "engine/test_walk.py::test_the_longest_stay_frees_a_parked_person_by_itself": """
        exit-duration-frees-parked-person""",
    "engine/test_walk.py::test_the_exit_rule_is_asked_at_the_door": "exit-at-the-door",
    "engine/test_walk.py::test_an_empty_next_ends_the_journey": "exit-empty-next",
    "engine/test_walk.py::test_an_exit_closes_the_timer_and_a_claimed_one_does_nothing": """
        exit-removes-timers""",
    "engine/test_walk.py::test_a_send_is_made_once_however_often_the_clock_is_polled": """
        exit-on-unsubscribe-not-retried""",
    "engine/test_allot.py::test_nobody_and_everybody": "split-holdout-0 split-holdout-100",
    "engine/test_allot.py::test_the_scale_of_weights_does_not_matter": "split-weight-scale",
    "engine/test_allot.py::test_a_growing_holdout_keeps_its_members": """
        split-holdout-grows-keeping-members""",
    "engine/test_allot.py::test_arms_are_shared_alike_inside_and_outside_the_holdout": """
        split-independent""",
    "engine/test_allot.py::test_a_node_named_like_another_ones_arms_needs_the_refused_suffix": """
        split-branch-suffix-clash""",
    "engine/test_allot.py::test_another_process_draws_the_same": "split-stable-across-processes",
    "engine/test_allot.py::test_seven_and_the_text_seven_are_one_person": "split-user-id-type",
    "engine/test_allot.py::test_persian_emoji_and_both_forms_of_e_acute": "split-unicode-user",
    "engine/test_check_nodes.py::test_a_problem_says_what_is_wrong_where_and_what_to_do": """
        split-all-zero bday-negative-offset""",
    "engine/test_nodes.py::"
    "test_a_holdout_without_a_path_follows_the_first_branch_and_gets_nothing": """
        holdout-no-path""",
    "engine/test_nodes.py::test_state_is_written_for_a_holdout_and_nothing_leaves_the_house": """
        holdout-state-still-written""",
    "engine/test_nodes.py::test_where_no_hash_can_be_made_nobody_is_treated": """
        holdout-survives-error""",
    "engine/test_nodes.py::test_a_holdout_stays_one_through_later_splits_and_waits": """
        holdout-second-split""",
    "engine/test_nodes.py::test_a_send_is_held_at_the_step_until_its_window_opens": """
        win-close-exact win-open-exact win-friday-late-to-monday win-day-advance-resets-time
        win-overnight-overlap-inside win-overnight-friday-into-saturday win-overnight-midday
        win-sender-zone""",
    "engine/test_nodes.py::test_the_window_is_asked_again_when_the_step_runs": """
        win-recheck-closed-meanwhile win-recheck-overdue-by-hours win-contact-moved-west""",
    "engine/test_nodes.py::test_a_text_message_keeps_both_windows": """
        sms-before-eight sms-nine-pm-exact sms-sender-window-recipient-west sms-windows-never-meet
        sms-campaign-window-too-early""",
    "engine/test_nodes.py::test_a_number_that_says_nothing_takes_the_senders_zone": """
        sms-zone-ambiguous-phone""",
    "engine/test_nodes.py::test_jitter_is_the_hash_of_person_node_and_entry": """
        jitter-stable-on-retry""",
    "engine/test_nodes.py::test_a_jitter_past_the_close_moves_to_the_next_opening": """
        jitter-inside jitter-past-close-friday""",
    "engine/test_nodes.py::test_a_broken_zone_name_is_noted_and_gives_way_to_the_senders": """
        tz-bad-keys""",
    "engine/test_nodes.py::test_a_message_has_the_name_of_the_case": "msgid-format",
    "engine/test_nodes.py::test_two_sends_never_share_a_name": "msgid-dot-collision",
    "engine/test_nodes.py::test_a_loop_numbers_its_second_and_later_messages": """
        msgid-loop-collision""",
    "engine/test_template.py::test_the_properties_that_travel": """
        props-32-of-33 props-512-exact props-too-long-does-not-use-a-place props-sort-order""",
    "engine/test_template.py::test_a_message_as_the_case_tells_it": """
        tpl-missing-after-wait tpl-no-shadowing tpl-zero-and-false tpl-null-is-missing
        tpl-empty-string tpl-no-second-pass""",
    "engine/test_rule.py::test_the_text_ten_is_not_the_number_ten": "cmp-text-ten-number-ten",
    "engine/test_rule.py::test_numbers_are_ordered_as_numbers": """
        cmp-greater-than-numbers cmp-greater-than-numeric-text""",
    "engine/test_rule.py::test_null_and_absent_are_missing_alike": "cmp-null-and-absent",
    "engine/test_strict_json.py::test_numbers_no_store_can_hold": "cmp-nan",
    "engine/test_program.py::test_the_exact_value_is_meant_with_its_type": """
        cmp-text-ten-number-ten""",
    "engine/test_program.py::test_writing_the_stored_value_enters_nobody": "attr-same-value-again",
    "engine/test_program.py::"
    "test_a_written_trait_enters_and_neither_another_nor_the_reserved_event_does": """
        attr-other-trait""",
    "engine/test_profile.py::test_an_older_identify_does_not_overwrite": "attr-late-identify",
    "engine/test_walk.py::"
    "test_without_an_evaluator_a_condition_says_no_and_a_switch_takes_its_default": """
        cond-no-evaluator""",
    "engine/test_strict_json.py::test_the_cases_of_one_body": """
        json-nan-weight json-deep-nesting json-duplicate-keys json-nul-character""",
    "engine/test_strict_json.py::test_the_case_of_infinities": "json-infinity",
    "engine/test_strict_json.py::test_a_huge_amount_is_still_json": "json-huge-amount",
    "engine/test_strict_json.py::test_depth_one_hundred_is_read_and_five_thousand_is_not": """
        json-deep-definition""",
    "engine/test_strict_json.py::test_ids_that_differ_by_a_space_or_case_stay_apart": """
        json-whitespace-id""",
    "engine/test_check_nodes.py::test_empty_texts_are_each_a_problem": "json-empty-strings",
    "engine/test_check_nodes.py::test_amounts_that_are_none_are_problems": """
        timer-zero-and-negative json-huge-amount""",
    "engine/test_check.py::test_windows_without_a_reading_are_problems": "win-refused-shapes",
    "engine/test_check.py::test_a_problem_says_what_is_wrong_where_and_what_to_do": """
        graph-cycle-no-wait graph-duplicate-ids graph-entry-missing""",
    "engine/test_check.py::test_a_loop_through_a_wait_lets_time_pass": "graph-cycle-with-wait",
    "engine/test_check.py::test_a_loop_through_an_event_wait_without_timeout_is_a_cycle": """
        graph-cycle-event-wait-no-timeout""",
    "engine/test_check.py::test_every_planted_problem_is_found_at_once": """
        graph-two-cycles-both-reported""",
    "engine/test_check.py::test_five_thousand_nodes_and_no_recursion": "graph-deep-chain",
    "engine/test_check.py::test_nodes_that_are_none_are_problems_too": "graph-null-nodes",
    "engine/test_check_warnings.py::test_a_warning_says_what_will_happen": "graph-unreachable",
    "engine/test_document.py::test_a_draft_of_one_node_is_read": "graph-draft-incomplete-saves",
    "engine/test_walk.py::test_a_step_too_long_leaves_everything_as_it_was": "graph-step-limit",
    "engine/test_walk.py::test_one_hundred_nodes_pass_and_one_hundred_and_one_do_not": """
        graph-step-limit-boundary""",
    "server/test_cases_of_the_store.py::test_two_pollers_take_each_timer_once": "timer-claim-once",
    "server/test_cases_of_the_store.py::"
    "test_a_claim_outlives_its_transaction_and_a_stale_one_writes_nothing": """
        timer-lock-must-outlive-the-select timer-recovery-does-not-steal-live-work""",
    "server/test_cases_of_the_store.py::test_scheduling_again_leaves_one_timer": "timer-replace",
    "server/test_cases_of_the_store.py::"
    "test_a_crash_between_state_and_effects_loses_nothing_and_doubles_nothing": """
        timer-crash-between-state-and-effects""",
    "server/test_cases_of_the_store.py::test_one_bad_apple": "timer-one-bad-apple",
    "server/test_cases_of_the_store.py::"
    "test_a_timer_that_always_raises_neither_blocks_nor_spins": """
        timer-always-raises""",
    "server/test_cases_of_the_store.py::test_a_dead_workers_claim_is_taken_up": """
        timer-claimed-by-a-dead-worker""",
    "server/test_cases_of_the_store.py::test_a_timer_three_hours_overdue_is_found": """
        timer-past-bucket""",
    "server/test_cases_of_the_store.py::test_an_aware_time_of_another_zone_is_the_same_instant": """
        timer-offset-input-sqlite""",
    "server/test_cases_of_the_store.py::test_a_restart_keeps_the_deadline": """
        timer-restart-keeps-deadline""",
    "server/test_cases_of_the_store.py::test_a_wake_up_goes_on_from_the_wait": """
        timer-resume-not-from-start""",
    "server/test_cases_of_the_store.py::test_people_stay_in_their_version": "timer-version-pinned",
    "server/test_cases_of_the_store.py::test_a_wait_of_many_days_does_not_fire_at_once": """
        timer-thirty-day-wait""",
    "server/test_cases_of_the_store.py::test_many_writers_of_one_file_never_find_it_locked": """
        timer-sqlite-many-writers""",
    "server/test_cases_of_the_store.py::test_two_events_at_two_workers_are_one_entry": """
        reentry-concurrent-triggers""",
    "server/test_cases_of_the_store.py::test_a_redelivery_neither_enters_nor_answers": """
        ev-trigger-event-is-not-its-own-answer""",
    "server/test_cases_of_the_store.py::test_a_duplicate_is_known_after_a_day_and_a_restart": """
        ev-duplicate-late""",
    "server/test_cases_of_the_store.py::"
    "test_the_arrival_decides_between_an_answer_and_a_time_out": """
        ev-same-instant-as-timeout ev-just-after-timeout-before-poll
        ev-right-after-wait-starts""",
    "server/test_cases_of_the_store.py::test_messages_that_look_alike_are_both_delivered": """
        msgid-dot-collision""",
    "server/test_cases_of_the_store.py::test_a_weekly_loop_delivers_every_message": """
        msgid-loop-collision""",
    "server/test_cases_of_the_store.py::test_a_simulation_stores_and_sends_nothing": """
        sim-no-side-effects""",
    "server/test_cases_of_the_store.py::test_a_simulation_passes_waits_and_counts_them": """
        sim-waits-counted""",
    "server/test_scanner.py::test_the_first_look_enrols_nobody_and_records_everybody": """
        sweep-first-scan""",
    "server/test_scanner.py::test_leaving_and_coming_back_counts_as_entering": """
        reentry-after-segment-flap""",
    "server/test_scanner.py::test_sweeps_run_at_their_hours_of_the_accounts_day": """
        sweep-tehran sweep-gap-hour sweep-overlap-hour""",
    "server/test_scanner.py::test_an_outage_costs_one_sweep": "sweep-missed-while-down",
    "server/test_scanner.py::test_a_birthday_comes_on_its_day": """
        bday-leap-common-year bday-new-year-wrap bday-mar1-common bday-datetime-value""",
    "server/test_scanner.py::test_the_day_of_a_date_is_the_accounts": "bday-day-is-the-accounts",
    "server/test_scanner.py::test_unreadable_dates_enrol_nobody_and_are_counted": "bday-bad-values",
    "server/test_cases_of_delivery.py::test_a_message_is_delivered_as_the_case_tells_it": """
        tpl-missing-after-wait tpl-no-shadowing tpl-zero-and-false tpl-null-is-missing
        tpl-empty-string tpl-no-second-pass""",
    "server/test_cases_of_delivery.py::test_the_values_that_travel_arrive": """
        props-32-of-33 props-512-exact props-too-long-does-not-use-a-place props-sort-order""",
    "server/test_cases_of_delivery.py::"
    "test_a_refusal_for_the_person_is_told_once_and_the_walk_goes_on": """
        exit-on-unsubscribe-not-retried""",
    "server/test_governance.py::test_a_text_message_keeps_its_own_hours": "sms-nine-pm-exact",
    "server/test_server_command_line.py::test_a_script_that_forgets_to_close_still_ends": """
        timer-process-exits""",
    "server/test_server_command_line.py::test_importing_opens_nothing_and_starts_no_thread": """
        timer-import-has-no-side-effects""",
    "server/test_enter.py::test_blanks_and_repeats_are_dropped": "enter-blanks-and-repeats",
    "server/test_enter.py::test_five_hundred_pass_and_one_more_does_not": "enter-500",
    "server/test_enter.py::test_five_hundred_and_one_with_a_repeat_are_five_hundred": """
        enter-501-with-a-repeat""",
    "server/test_enter.py::test_a_journey_with_another_trigger_takes_nobody_in": "enter-not-api",
    "sdk/test_draw.py::test_ids_with_colons_keep_their_edges": "render-colon-ids",
    "sdk/test_draw.py::test_labels_that_look_like_html_are_shown_literally": """
        render-html-like-label""",
    "sdk/test_draw.py::test_a_very_long_label_is_shortened": "render-very-long-label",
    "sdk/test_draw.py::test_without_a_renderer_the_journey_is_shown_as_text": """
        render-no-dot-binary""",
    "sdk/test_draw.py::test_the_same_graph_gives_the_same_text_in_every_process": "render-stable",
}
"""Each test with the cases it shows; a case may be shown by several."""

LATER_AREAS = {
    "graphql": "there is no server yet",
    "stats": "uplift is not computed yet",
}
LATER_CASES = {
    "json-unknown-fields-enter": "no route reads the body of an enter call yet",
    "nb-inside-running-loop": "nothing that is called in a notebook waits for a loop yet",
    "nb-output-after-await": "there are no widgets yet",
    "nb-committed-outputs-clean": "a check of the notebooks as a whole, not of the engine",
    "pkg-async-extra": "there is no store to open yet",
}
"""Why nothing here shows a case."""


def covered() -> Counter[str]:
    return Counter(case_id for ids in COVERED.values() for case_id in ids.split())


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


def test_every_case_is_shown_by_a_test_or_waits_with_a_reason(cases: Mapping[str, Any]) -> None:
    shown = covered()
    unknown = [
        case_id
        for case_id, case in cases.items()
        if case_id not in shown and case_id not in LATER_CASES and case["area"] not in LATER_AREAS
    ]

    assert unknown == []


def test_no_case_is_named_that_there_is_not(cases: Mapping[str, Any]) -> None:
    assert {*covered(), *LATER_CASES} - set(cases) == set()
    assert set(LATER_AREAS) <= {case["area"] for case in cases.values()}


def test_what_waits_is_not_shown_already() -> None:
    assert set(covered()) & set(LATER_CASES) == set()


def test_every_test_that_is_named_is_there() -> None:
    named = [entry.split("::") for entry in COVERED]

    assert [f"{path}::{name}" for path, name in named if name not in functions(path)] == []
