//! The live suite: the real app-server, against a model of our own. `cargo xtask live` runs it.
//!
//! Each test takes the version of codex, and [`live`] makes one test a version of it: `v0_171_0::plain_turn`. Every
//! session is recorded and checked at its end, see [`turnkeep_tests::session`].

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[cfg(feature = "live")]
mod children;
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
mod protocol;
#[cfg(feature = "live")]
mod questions;
#[cfg(feature = "live")]
mod reconnect;
#[cfg(feature = "live")]
mod rounds;
#[cfg(feature = "live")]
mod sockets;
#[cfg(feature = "live")]
mod steers;
#[cfg(feature = "live")]
mod stops;
#[cfg(feature = "live")]
mod threads;
#[cfg(feature = "live")]
mod tokens;
#[cfg(feature = "live")]
mod tools;
#[cfg(feature = "live")]
mod turns;

#[cfg(feature = "live")]
use turnkeep_tests::{chosen::Transport, session};

/// Makes the tests that kill, see [`crash`], for a version.
#[cfg(feature = "live")]
macro_rules! crashes {
    ($version:literal: $($name:ident $victim:ident)+) => {
        $(#[test] fn $name() { crate::crash::crashes($version, crate::crash::Victim::$victim); })+
    };
}

/// Makes one test for each version of each function, in three parts: what holds over every transport, what is about a
/// child of the client (`stdio`), and what is about a socket (`sockets`). A function that is left out is dead code.
///
/// `cargo xtask live` leaves out a part that the transport does not have, by the name of its module, and counts it.
#[cfg(feature = "live")]
macro_rules! live {
    ($($part:ident { $($file:ident: $($name:ident)+;)+ })+) => {
        mod v0_163_0 {
            live!(@version "0.163.0"; $($part { $($file: $($name)+;)+ })+);
        }
        mod v0_171_0 {
            live!(@version "0.171.0"; $($part { $($file: $($name)+;)+ })+);
        }
        #[test]
        fn every_version_has_its_tests() {
            assert_eq!(turnkeep_tests::codex::VERSIONS, ["0.163.0", "0.171.0"]);
            $(println!("{}: {} tests a version", stringify!($part), [$($(stringify!($name)),+),+].len());)+
        }
    };
    (@version $version:literal; any { $($file:ident: $($name:ident)+;)+ } $($rest:tt)*) => {
        $($(#[test] fn $name() { turnkeep_tests::session::run(crate::$file::$name($version)); })+)+
        live!(@version $version; $($rest)*);
    };
    (@version $version:literal; stdio { $($file:ident: $($name:ident)+;)+ } $($rest:tt)*) => {
        mod stdio {
            $($(#[test] fn $name() { crate::stdio($version, crate::$file::$name); })+)+
            crashes!($version: server_killed Server we_are_killed Us both_are_killed Both);
        }
        live!(@version $version; $($rest)*);
    };
    (@version $version:literal; sockets { $($file:ident: $($name:ident)+;)+ }) => {
        mod sockets {
            $($(#[test] fn $name() { crate::sockets($version, crate::$file::$name); })+)+
            crashes!($version: server_killed Server we_are_killed Us both_are_killed Both connection_cut Connection);
        }
    };
}

/// Runs a test that is about a child of the client.
#[cfg(feature = "live")]
fn stdio<F: Future<Output = ()>>(version: &'static str, test: impl FnOnce(&'static str) -> F) {
    let chosen = Transport::chosen();
    assert!(
        !chosen.is_socket(),
        "this is a test of stdio; `cargo xtask live` leaves it out"
    );
    session::run(test(version));
}

/// Runs a test that is about a socket.
#[cfg(feature = "live")]
fn sockets<F: Future<Output = ()>>(version: &'static str, test: impl FnOnce(&'static str) -> F) {
    let chosen = Transport::chosen();
    assert!(
        chosen.is_socket(),
        "this is a test of sockets; `cargo xtask live` leaves it out"
    );
    session::run(test(version));
}

#[cfg(feature = "live")]
live! {
    any {
        threads:
            changed_settings_hold_on_the_same_thread
            materialised_thread_outlives_its_server
            compaction_ends_with_its_turn
            compaction_that_fails_is_an_error
            compaction_lost_with_its_server_is_told_by_the_history
            fork_goes_its_own_way;
        turns:
            plain_turn
            threads_are_as_asked
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
            blocking_preflight_holds_the_first_round_back;
        protocol:
            every_stable_read_is_answered_and_typed
            thread_lives_by_typed_commands
            inventories_follow_the_rules_of_lists
            answer_of_a_type_is_asked_for_and_checked
            sent_frames_are_of_the_servers_schema;
        tokens:
            refreshed_token_goes_to_the_model_and_into_no_log
            token_of_another_account_is_refused_here
            refresh_that_nobody_serves_fails_the_turn
            unanswered_refresh_ends_before_the_server_gives_up;
        children:
            call_of_a_sub_agent_is_served
            call_of_a_sub_agent_fails_where_nobody_serves_it
            question_of_a_sub_agent_is_answered
            question_of_a_sub_agent_is_declined_where_nobody_serves_it;
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
            unsupported_version_is_refused
            any_version_is_served_where_asked
            shutdown_in_mid_turn_leaves_nothing
            raw_request_is_answered;
        reconnect:
            text_is_interrupted_and_the_next_turn_works
            thread_without_a_turn_is_made_again
            open_call_turns_deferred_and_its_result_is_told
            open_approval_is_settled_and_permissions_stay;
    }
    stdio {
        killed:
            inline_call_of_a_killed_process_fails_once
            deferred_call_of_a_killed_process_fails_once
            call_of_a_killed_process_fails_once_after_its_turn;
        lives:
            killed_family_loses_the_turn_without_reconnection
            killed_launcher_loses_the_turn_without_reconnection
            killed_native_server_loses_the_turn_without_reconnection
            unusable_home_fails_the_start
            missing_program_fails_the_start
            dropped_client_leaves_nothing
            environment_is_passed;
        rounds:
            refused_steer_goes_with_the_round_that_follows;
        reconnect:
            orderly_end_leaves_nothing_to_recover;
    }
    sockets {
        sockets:
            turn_goes_on_over_a_cut_connection
            conversation_goes_on_after_a_cut_between_turns
            open_approval_comes_again
            open_call_stays_with_the_application
            turn_that_ends_while_away_is_caught_up
            another_client_answers_for_us
            turn_of_another_client_is_told
            unloaded_thread_is_resumed_first
            dead_socket_is_no_server
            shutdown_leaves_the_thread_to_the_next_client
            token_decides_who_is_served
            origin_is_refused;
        killed:
            waiting_turn_of_a_killed_process_goes_on_with_the_failure
            running_turn_of_a_killed_process_is_followed;
    }
}

#[cfg(not(feature = "live"))]
#[test]
#[ignore = "the live suite needs the real codex: run `cargo xtask live`"]
fn live_suite_is_left_out() {}
