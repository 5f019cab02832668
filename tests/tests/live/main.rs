//! The live suite: the real app-server, against a model of our own. `cargo xtask live` runs it.
//!
//! Each test takes the version of codex, and [`live`] makes one test a version of it: `v0_171_0::plain_turn`. Every
//! session is recorded and checked at its end, see [`turnkeep_tests::session`].

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[cfg(feature = "live")]
mod cleanup;
#[cfg(feature = "live")]
mod codex;
#[cfg(feature = "live")]
mod crash;
#[cfg(feature = "live")]
mod crash_check;
#[cfg(feature = "live")]
mod failures;
#[cfg(feature = "live")]
mod killed;
#[cfg(feature = "live")]
mod lives;
#[cfg(feature = "live")]
mod processes;
#[cfg(feature = "live")]
mod questions;
#[cfg(feature = "live")]
mod reconnect;
#[cfg(feature = "live")]
mod rounds;
#[cfg(feature = "live")]
mod steers;
#[cfg(feature = "live")]
mod stops;
#[cfg(feature = "live")]
mod tools;
#[cfg(feature = "live")]
mod turns;

/// Makes the tests that kill, see [`crash`], for a version.
#[cfg(feature = "live")]
macro_rules! crashes {
    ($version:literal) => {
        #[test]
        fn server_killed() {
            super::crash::crashes($version, super::crash::Victim::Server);
        }
        #[test]
        fn we_are_killed() {
            super::crash::crashes($version, super::crash::Victim::Us);
        }
        #[test]
        fn both_are_killed() {
            super::crash::crashes($version, super::crash::Victim::Both);
        }
    };
}

/// Makes one test for each version of each function. A function that is left out is dead code.
#[cfg(feature = "live")]
macro_rules! live {
    ($($file:ident: $($name:ident)+;)+) => {
        mod v0_163_0 {
            $($(#[test] fn $name() { turnkeep_tests::session::run(super::$file::$name("0.163.0")); })+)+
            crashes!("0.163.0");
        }
        mod v0_171_0 {
            $($(#[test] fn $name() { turnkeep_tests::session::run(super::$file::$name("0.171.0")); })+)+
            crashes!("0.171.0");
        }
        #[test]
        fn every_version_has_its_tests() {
            assert_eq!(turnkeep_tests::codex::VERSIONS, ["0.163.0", "0.171.0"]);
            println!("{} tests a version", [$($(stringify!($name)),+),+].len());
        }
    };
}

#[cfg(feature = "live")]
live! {
    turns:
        plain_turn
        second_turn_goes_on_in_the_thread
        two_conversations_keep_apart
        send_while_running_is_busy
        structured_output_is_parsed
        structured_output_that_is_no_json_fails
        image_reaches_the_model
        ephemeral_thread_is_not_stored
        text_is_whole_without_deltas_and_starts
        close_frees_the_key
        close_while_running_is_busy;
    tools:
        result_goes_back_to_the_model
        failing_result_goes_back_to_the_model
        malformed_call_is_answered_with_its_fault
        unknown_inner_name_is_the_applications_to_refuse
        two_calls_of_one_answer_are_both_answered
        three_kinds_of_tools
        unanswered_call_is_closed_by_an_interrupt
        time_limit_answers_for_the_application;
    questions:
        accepted_command_runs
        declined_command_does_not_run
        cancelled_command_ends_the_turn
        accepted_file_change_is_written
        declined_file_change_is_not_written
        user_input_goes_back_to_the_model
        bad_answer_leaves_the_question_open
        questions_are_declined_by_default;
    stops:
        interrupt_stops_the_text
        second_interrupt_is_answered_here
        two_interrupts_at_once_are_one
        deadline_ends_the_turn
        dropped_turn_is_given_up
        detached_turn_goes_on;
    steers:
        steer_joins_the_running_turn
        steer_while_a_call_is_open_comes_after_its_result
        steer_after_the_end_is_refused
        steer_that_crosses_the_end_runs_once
        steer_that_crosses_an_interrupt_runs_once;
    rounds:
        deferred_result_is_steered_in_at_the_next_stage
        deferred_result_is_steered_in_at_once
        boxes_are_told_with_their_numbers
        steer_lost_to_a_kill_is_submitted_again
        stage_lost_to_a_kill_is_submitted_again
        steer_lost_to_an_interrupt_is_submitted_again
        steer_into_text_is_told_once_after_an_interrupt
        result_after_the_turn_makes_one_round
        many_triggers_make_one_round
        new_threads_are_told_everything_once
        refused_steer_goes_with_the_round_that_follows
        blocking_preflight_holds_the_first_round_back;
    killed:
        inline_call_of_a_killed_process_fails_once
        deferred_call_of_a_killed_process_fails_once
        call_of_a_killed_process_fails_once_after_its_turn;
    cleanup:
        deleted_thread_is_gone
        workspace_is_archived
        detached_conversation_stops_its_terminals;
    failures:
        failed_response_fails_the_turn
        http_500_fails_the_turn
        cut_stream_fails_the_turn_with_its_text
        retry_is_a_warning
        retries_that_run_out_fail_the_turn;
    lives:
        killed_family_loses_the_turn_without_reconnection
        killed_launcher_loses_the_turn_without_reconnection
        killed_native_server_loses_the_turn_without_reconnection
        unsupported_version_is_refused
        any_version_is_served_where_asked
        unusable_home_fails_the_start
        missing_program_fails_the_start
        shutdown_in_mid_turn_leaves_nothing
        dropped_client_leaves_nothing
        environment_is_passed
        raw_request_is_answered;
    reconnect:
        text_is_interrupted_and_the_next_turn_works
        thread_without_a_turn_is_made_again
        open_call_turns_deferred_and_its_result_is_told
        open_approval_is_settled_and_permissions_stay
        orderly_end_leaves_nothing_to_recover;
}

#[cfg(not(feature = "live"))]
#[test]
#[ignore = "the live suite needs the real codex: run `cargo xtask live`"]
fn live_suite_is_left_out() {}
